"""batchgen's own routes: jobs, devices, keys, health, metrics."""
