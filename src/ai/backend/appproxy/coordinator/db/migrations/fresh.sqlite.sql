-- Written by `python -m tools.docs` from the migrations: an empty database of their newest revision.
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE authorities (
    id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    certificate TEXT NOT NULL,
    CONSTRAINT pk_authorities PRIMARY KEY (id)
);
CREATE TABLE setups (
    token_hash VARCHAR(64) NOT NULL,
    session_id VARCHAR(36) NOT NULL,
    document TEXT NOT NULL,
    expires_at DATETIME NOT NULL,
    is_used BOOLEAN NOT NULL,
    CONSTRAINT pk_setups PRIMARY KEY (token_hash)
);
CREATE TABLE workers (
    id VARCHAR(36) NOT NULL,
    authority VARCHAR(255) NOT NULL,
    frontend_mode VARCHAR(32) NOT NULL,
    protocol VARCHAR(32) NOT NULL,
    hostname VARCHAR(255) NOT NULL,
    use_tls BOOLEAN NOT NULL,
    api_port INTEGER NOT NULL,
    low_port INTEGER,
    high_port INTEGER,
    wildcard_domain VARCHAR(255),
    wildcard_port INTEGER,
    filtered_apps_only BOOLEAN NOT NULL,
    accepted_traffics TEXT NOT NULL,
    app_filters TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    updated_at DATETIME NOT NULL,
    version INTEGER NOT NULL,
    CONSTRAINT pk_workers PRIMARY KEY (id),
    CONSTRAINT uq_workers_authority UNIQUE (authority)
);
CREATE TABLE circuits (
    id VARCHAR(36) NOT NULL,
    worker_id VARCHAR(36) NOT NULL,
    port INTEGER,
    subdomain VARCHAR(63),
    app VARCHAR(64) NOT NULL,
    app_mode VARCHAR(32) NOT NULL,
    user_id VARCHAR(36),
    endpoint_id VARCHAR(36),
    document TEXT NOT NULL,
    version INTEGER NOT NULL,
    requests INTEGER NOT NULL,
    last_used DATETIME NOT NULL,
    failure TEXT,
    tokens INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT pk_circuits PRIMARY KEY (id),
    CONSTRAINT uq_circuits_worker_id_port UNIQUE (worker_id, port),
    CONSTRAINT uq_circuits_worker_id_subdomain UNIQUE (worker_id, subdomain),
    CONSTRAINT fk_circuits_worker_id_workers FOREIGN KEY(worker_id) REFERENCES workers (id) ON DELETE CASCADE,
    CONSTRAINT uq_circuits_endpoint_id UNIQUE (endpoint_id)
);
CREATE TABLE resting_slots (
    worker_id VARCHAR(36) NOT NULL,
    slot VARCHAR(63) NOT NULL,
    user_id VARCHAR(36),
    until DATETIME,
    circuit_id VARCHAR(36),
    endpoint_id VARCHAR(36),
    CONSTRAINT pk_resting_slots PRIMARY KEY (worker_id, slot),
    CONSTRAINT fk_resting_slots_worker_id_workers FOREIGN KEY(worker_id) REFERENCES workers (id) ON DELETE CASCADE
);
CREATE TABLE worker_nodes (
    worker_id VARCHAR(36) NOT NULL,
    node VARCHAR(64) NOT NULL,
    seen_at DATETIME NOT NULL,
    is_linked BOOLEAN NOT NULL,
    acked INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    CONSTRAINT pk_worker_nodes PRIMARY KEY (worker_id, node),
    CONSTRAINT fk_worker_nodes_worker_id_workers FOREIGN KEY(worker_id) REFERENCES workers (id) ON DELETE CASCADE
);
CREATE TABLE circuit_sessions (
    circuit_id VARCHAR(36) NOT NULL,
    session_id VARCHAR(36) NOT NULL,
    CONSTRAINT pk_circuit_sessions PRIMARY KEY (circuit_id, session_id),
    CONSTRAINT fk_circuit_sessions_circuit_id_circuits FOREIGN KEY(circuit_id) REFERENCES circuits (id) ON DELETE CASCADE
);
CREATE TABLE endpoint_loads (
    worker_id VARCHAR(36) NOT NULL,
    node VARCHAR(64) NOT NULL,
    circuit_id VARCHAR(36) NOT NULL,
    queued INTEGER NOT NULL,
    wakes INTEGER NOT NULL,
    in_flight TEXT NOT NULL,
    CONSTRAINT pk_endpoint_loads PRIMARY KEY (worker_id, node, circuit_id),
    CONSTRAINT fk_endpoint_loads_circuit_id_circuits FOREIGN KEY(circuit_id) REFERENCES circuits (id) ON DELETE CASCADE
);
CREATE TABLE endpoint_usage (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    document TEXT NOT NULL,
    created_at DATETIME NOT NULL
);
CREATE INDEX ix_setups_session_id ON setups (session_id);
CREATE INDEX ix_circuit_sessions_session_id ON circuit_sessions (session_id);
CREATE INDEX ix_endpoint_usage_created_at ON endpoint_usage (created_at);
INSERT INTO alembic_version VALUES ('0004');
