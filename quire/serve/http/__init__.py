"""HTTP as every endpoint needs it: who asks, the exchange of one request and its reply, errors, settings."""
