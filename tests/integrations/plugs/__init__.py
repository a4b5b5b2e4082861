"""Parts of Quire behind the sockets of other engines, beside their interfaces and, where the package is, in it."""
