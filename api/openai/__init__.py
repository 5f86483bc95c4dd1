"""Files, batches and models as the official `openai` client knows them."""
