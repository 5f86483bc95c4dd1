"""What users hand in and get back: JSONL, OpenAI bodies, records, and the faults of a file."""
