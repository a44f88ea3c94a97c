"""The CNI plugin: a tiny client for the container runtime and the agent that felix hosts."""
