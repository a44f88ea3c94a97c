"""The CNI plugin: a tiny client for the container runtime and the agent that felix hosts.

How felix hosts it (one datastore connection, one syncer):

    facts = ClusterFacts(node_name)             # cni.facts: a SyncSink, fed with felix's updates;
                                                # needs IPAM's config key besides the v3 kinds
    agent = Agent(
        programmer,                             # felix's implementation of cni.ports
        EndpointStore(datastore, facts),        # cni.endpoints
        Addresses(IpamClient(datastore, facts)),    # cni.addresses, ipam.client
    )
    await agent.serve(paths.cni_socket())       # until cancelled
"""
