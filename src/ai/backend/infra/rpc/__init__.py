"""The link between manager and agents: one interface, an adapter in memory and one on ZeroMQ with CURVE.

``endpoints`` holds the interface that daemons code against; these implement it and pass ``tests/contract/rpc``
both:

* ``memory.MemoryLink()``: ``.manager`` is the manager's end, ``.agent_endpoint(agent_id)`` an agent's;
* ``zmq_manager.ZmqManagerEndpoint(bind="tcp://127.0.0.1:0", keypair=KeyPair, agent_keys=AgentKeys)``;
* ``zmq_agent.ZmqAgentEndpoint(connect="tcp://...", agent_id=..., keypair=KeyPair, manager_key=str)``.

Keys come from ``keys``: ``generate_keypair(path)``, ``load_keypair(path)``, ``AgentKeyDirectory(directory)`` with
``allow(agent_id, public_key)`` and ``revoke(agent_id)``.
"""
