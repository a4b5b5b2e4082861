"""What both sides of the connector know: options, groups, identity of requests, orders and reports."""
