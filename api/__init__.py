"""The REST interface: thin routes over the services. The OpenAI part speaks OpenAI's language."""
