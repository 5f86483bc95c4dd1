"""What the service is about, in plain Python: ids, states, requests, outcomes, errors, time."""
