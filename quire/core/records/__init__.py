"""What callers pass in and get back, checked, mostly frozen: configs, requests, plans, events, errors."""
