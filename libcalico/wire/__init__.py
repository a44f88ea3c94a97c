"""The protocol between typha and its clients, sans-I/O: bytes in, events and bytes out.

Source of the bytes: typha/PROTOCOL.md. Users: typha (server side), libcalico.syncer.typha.
"""
