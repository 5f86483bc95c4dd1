"""A scripted engine for tests and capacity planning: no model, and it says so everywhere."""
