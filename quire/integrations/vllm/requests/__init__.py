"""One stay of a request on the device: what it asks for, what it is offered and loads, what is stored of it."""
