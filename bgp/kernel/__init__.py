"""Routes between the RIB and the kernel, both ways.

Layer: edge. `host` mirrors what others put into the kernel (next hops, workloads), `decision` turns
a selected path into a kernel route (pure), `writer` makes the kernel agree, `side` joins them.
"""
