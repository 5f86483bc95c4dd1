"""What runs on this machine: embedded servers, the stack of processes, the doctor."""
