"""What the processes say of themselves: log lines and metrics, both declared once."""
