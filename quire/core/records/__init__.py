"""What callers pass in and get back, checked and mostly frozen: configs, requests, spans, plans, events, errors. Knows no cache."""
