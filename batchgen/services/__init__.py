"""What can be done: one deed a module, over storage, engines' specs and doorbells."""
