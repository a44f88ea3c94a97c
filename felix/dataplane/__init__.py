"""Decides what the kernel should hold and reconciles it, through ports; does no I/O itself."""
