"""The only place that talks to the kernel: implements the ports of felix.dataplane."""
