"""Intents to packet-filter chains: pure data in, pure data out; text and netlink come later."""
