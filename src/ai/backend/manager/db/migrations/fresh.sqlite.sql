-- Written by `python -m tools.docs` from the migrations: an empty database of their newest revision.
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
CREATE TABLE agent_acks (
    agent_id VARCHAR(64) NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    CONSTRAINT pk_agent_acks PRIMARY KEY (agent_id)
);
CREATE TABLE agents (
    id VARCHAR(64) NOT NULL,
    status VARCHAR(32) NOT NULL,
    status_changed DATETIME NOT NULL,
    epoch INTEGER NOT NULL,
    region VARCHAR(64) NOT NULL,
    architecture VARCHAR(32) NOT NULL,
    scaling_group VARCHAR(64) NOT NULL,
    schedulable BOOLEAN NOT NULL,
    available_slots TEXT NOT NULL,
    occupied_slots TEXT NOT NULL,
    addr VARCHAR(256) NOT NULL,
    first_contact DATETIME NOT NULL,
    last_heartbeat DATETIME NOT NULL,
    lost_at DATETIME,
    version VARCHAR(64) NOT NULL,
    runtime VARCHAR(64) NOT NULL,
    tier VARCHAR(64) NOT NULL,
    enforcement TEXT NOT NULL,
    generation INTEGER NOT NULL,
    devices TEXT NOT NULL,
    plugins TEXT NOT NULL,
    images TEXT NOT NULL,
    runtime_classes TEXT DEFAULT '[]' NOT NULL,
    overlay TEXT,
    location TEXT DEFAULT '[]' NOT NULL,
    kernel_limit INTEGER,
    version_id INTEGER NOT NULL,
    CONSTRAINT pk_agents PRIMARY KEY (id)
);
CREATE TABLE artifact_registries (
    id VARCHAR(36) NOT NULL,
    name VARCHAR(64) NOT NULL,
    type VARCHAR(32) NOT NULL,
    url TEXT NOT NULL,
    credentials TEXT NOT NULL,
    storages TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    modified_at DATETIME NOT NULL,
    viewers TEXT DEFAULT '["everyone"]' NOT NULL,
    user_import_bytes BIGINT,
    CONSTRAINT pk_artifact_registries PRIMARY KEY (id),
    CONSTRAINT uq_artifact_registries_name UNIQUE (name)
);
CREATE TABLE audit_logs (
    id INTEGER NOT NULL,
    at DATETIME NOT NULL,
    request_id VARCHAR(64) NOT NULL,
    user_id VARCHAR(36),
    access_key VARCHAR(20),
    operation VARCHAR(128) NOT NULL,
    object_type VARCHAR(32) NOT NULL,
    object_id VARCHAR(128),
    outcome VARCHAR(64) NOT NULL,
    detail TEXT NOT NULL,
    CONSTRAINT pk_audit_logs PRIMARY KEY (id)
);
CREATE TABLE background_tasks (
    id VARCHAR(36) NOT NULL,
    name VARCHAR(128) NOT NULL,
    owner VARCHAR(36) NOT NULL,
    status VARCHAR(32) NOT NULL,
    current_progress FLOAT NOT NULL,
    total_progress FLOAT NOT NULL,
    message TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    updated_at DATETIME NOT NULL,
    manager VARCHAR(128) DEFAULT '' NOT NULL,
    subject VARCHAR(128) DEFAULT '' NOT NULL,
    is_unwanted BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_background_tasks PRIMARY KEY (id)
);
CREATE TABLE bootstrap_scripts (
    access_key VARCHAR(20) NOT NULL,
    script TEXT NOT NULL,
    CONSTRAINT pk_bootstrap_scripts PRIMARY KEY (access_key)
);
CREATE TABLE domains (
    name VARCHAR(64) NOT NULL,
    description TEXT NOT NULL,
    is_active BOOLEAN NOT NULL,
    created_at DATETIME NOT NULL,
    total_resource_slots TEXT NOT NULL,
    allowed_vfolder_hosts TEXT DEFAULT '{}' NOT NULL,
    allowed_docker_registries TEXT,
    integration_id VARCHAR(512),
    modified_at DATETIME,
    CONSTRAINT pk_domains PRIMARY KEY (name)
);
CREATE TABLE dotfiles (
    scope VARCHAR(32) NOT NULL,
    owner VARCHAR(64) NOT NULL,
    path VARCHAR(1024) NOT NULL,
    permission VARCHAR(4) NOT NULL,
    data TEXT NOT NULL,
    CONSTRAINT pk_dotfiles PRIMARY KEY (scope, owner, path)
);
CREATE TABLE error_logs (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    severity VARCHAR(16) NOT NULL,
    source VARCHAR(64) NOT NULL,
    message TEXT NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    context_lang VARCHAR(64) NOT NULL,
    context_env TEXT NOT NULL,
    request_url TEXT,
    request_status INTEGER,
    traceback TEXT,
    created_at DATETIME NOT NULL,
    is_read BOOLEAN NOT NULL,
    is_cleared BOOLEAN NOT NULL
);
CREATE TABLE groups (
    id VARCHAR(36) NOT NULL,
    name VARCHAR(64) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    description TEXT NOT NULL,
    is_active BOOLEAN NOT NULL,
    created_at DATETIME NOT NULL,
    total_resource_slots TEXT NOT NULL,
    allowed_vfolder_hosts TEXT DEFAULT '{}' NOT NULL,
    integration_id VARCHAR(512),
    type VARCHAR(32) DEFAULT 'GENERAL' NOT NULL,
    resource_policy VARCHAR(256) DEFAULT 'default' NOT NULL,
    modified_at DATETIME,
    CONSTRAINT pk_groups PRIMARY KEY (id),
    CONSTRAINT uq_groups_domain_name_name UNIQUE (domain_name, name)
);
CREATE TABLE image_aliases (
    alias VARCHAR(128) NOT NULL,
    image VARCHAR(512) NOT NULL,
    architecture VARCHAR(32) NOT NULL,
    CONSTRAINT pk_image_aliases PRIMARY KEY (alias)
);
CREATE TABLE images (
    name VARCHAR(512) NOT NULL,
    architecture VARCHAR(32) NOT NULL,
    repository VARCHAR(512) NOT NULL,
    registry VARCHAR(256) NOT NULL,
    project VARCHAR(256) NOT NULL,
    digest VARCHAR(256) NOT NULL,
    config_digest VARCHAR(256) NOT NULL,
    size_bytes BIGINT NOT NULL,
    labels TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    scanned_at DATETIME NOT NULL,
    CONSTRAINT pk_images PRIMARY KEY (name, architecture)
);
CREATE TABLE kept_answers (
    access_key VARCHAR(20) NOT NULL,
    token VARCHAR(128) NOT NULL,
    fingerprint VARCHAR(64) NOT NULL,
    call_id VARCHAR(36) NOT NULL,
    begun_at DATETIME NOT NULL,
    status INTEGER,
    headers TEXT,
    body BLOB,
    CONSTRAINT pk_kept_answers PRIMARY KEY (access_key, token)
);
CREATE TABLE keypair_resource_policies (
    name VARCHAR(256) NOT NULL,
    created_at DATETIME NOT NULL,
    default_for_unspecified VARCHAR(32) NOT NULL,
    total_resource_slots TEXT NOT NULL,
    max_concurrent_sessions INTEGER NOT NULL,
    max_containers_per_session INTEGER NOT NULL,
    max_pending_session_count INTEGER DEFAULT '0' NOT NULL,
    max_pending_session_resource_slots TEXT DEFAULT '{}' NOT NULL,
    max_session_lifetime INTEGER NOT NULL,
    idle_timeout INTEGER NOT NULL,
    max_vfolder_count INTEGER NOT NULL,
    max_vfolder_size INTEGER NOT NULL,
    allowed_vfolder_hosts TEXT NOT NULL,
    max_claims INTEGER DEFAULT '0' NOT NULL,
    max_claim_idle_time INTEGER DEFAULT '0' NOT NULL,
    CONSTRAINT pk_keypair_resource_policies PRIMARY KEY (name)
);
CREATE TABLE keypairs (
    access_key VARCHAR(20) NOT NULL,
    secret_key TEXT NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    is_active BOOLEAN NOT NULL,
    is_admin BOOLEAN NOT NULL,
    created_at DATETIME NOT NULL,
    modified_at DATETIME NOT NULL,
    last_used DATETIME,
    resource_policy VARCHAR(256) NOT NULL,
    rate_limit INTEGER NOT NULL,
    num_queries INTEGER NOT NULL,
    ssh_public_key TEXT,
    concurrency_limit INTEGER DEFAULT '0' NOT NULL,
    allowed_client_ip TEXT DEFAULT '[]' NOT NULL,
    CONSTRAINT pk_keypairs PRIMARY KEY (access_key)
);
CREATE TABLE leases (
    name VARCHAR(128) NOT NULL,
    holder VARCHAR(128) NOT NULL,
    token BIGINT NOT NULL,
    expires_at DATETIME NOT NULL,
    CONSTRAINT pk_leases PRIMARY KEY (name)
);
CREATE TABLE quota_limits (
    host VARCHAR(128) NOT NULL,
    quota_scope VARCHAR(64) NOT NULL,
    limit_bytes BIGINT NOT NULL,
    CONSTRAINT pk_quota_limits PRIMARY KEY (host, quota_scope)
);
CREATE TABLE resource_presets (
    name VARCHAR(256) NOT NULL,
    resource_slots TEXT NOT NULL,
    shared_memory INTEGER,
    device_requests TEXT DEFAULT '[]' NOT NULL,
    CONSTRAINT pk_resource_presets PRIMARY KEY (name)
);
CREATE TABLE resource_slot_types (
    slot_name VARCHAR(64) NOT NULL,
    slot_type VARCHAR(32) NOT NULL,
    display TEXT NOT NULL,
    CONSTRAINT pk_resource_slot_types PRIMARY KEY (slot_name)
);
CREATE TABLE scaling_groups (
    name VARCHAR(64) NOT NULL,
    description TEXT NOT NULL,
    is_active BOOLEAN NOT NULL,
    is_public BOOLEAN NOT NULL,
    created_at DATETIME NOT NULL,
    driver VARCHAR(64) NOT NULL,
    driver_opts TEXT NOT NULL,
    scheduler VARCHAR(64) NOT NULL,
    scheduler_opts TEXT NOT NULL,
    use_host_network BOOLEAN NOT NULL,
    wsproxy_addr VARCHAR(1024),
    wsproxy_api_token VARCHAR(128),
    CONSTRAINT pk_scaling_groups PRIMARY KEY (name)
);
CREATE TABLE session_callbacks (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    session_id VARCHAR(36) NOT NULL,
    access_key VARCHAR(20) NOT NULL,
    url TEXT NOT NULL,
    body TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    due_at DATETIME NOT NULL,
    trace VARCHAR(55)
);
CREATE TABLE session_events (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    name VARCHAR(64) NOT NULL,
    session_id VARCHAR(36) NOT NULL,
    kernel_id VARCHAR(36),
    access_key VARCHAR(20) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    at DATETIME NOT NULL,
    payload TEXT NOT NULL
);
CREATE TABLE session_templates (
    id VARCHAR(36) NOT NULL,
    kind VARCHAR(32) NOT NULL,
    name VARCHAR(128) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    group_name VARCHAR(64) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    user_email VARCHAR(256) NOT NULL,
    document TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    modified_at DATETIME NOT NULL,
    CONSTRAINT pk_session_templates PRIMARY KEY (id)
);
CREATE TABLE sessions (
    id VARCHAR(36) NOT NULL,
    name VARCHAR(64) NOT NULL,
    type VARCHAR(32) NOT NULL,
    status VARCHAR(32) NOT NULL,
    status_info TEXT,
    status_data TEXT NOT NULL,
    status_history TEXT NOT NULL,
    status_changed DATETIME NOT NULL,
    result VARCHAR(32) NOT NULL,
    version INTEGER NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    group_name VARCHAR(64) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    user_email VARCHAR(256) NOT NULL,
    access_key VARCHAR(20) NOT NULL,
    created_by VARCHAR(20) NOT NULL,
    image VARCHAR(512) NOT NULL,
    architecture VARCHAR(32) NOT NULL,
    tag VARCHAR(256),
    cluster_mode VARCHAR(32) NOT NULL,
    runtime_class VARCHAR(64) DEFAULT '' NOT NULL,
    cluster_size INTEGER NOT NULL,
    vni INTEGER,
    network TEXT,
    requested_slots TEXT NOT NULL,
    variant_requirements TEXT DEFAULT '[]' NOT NULL,
    resource_opts TEXT NOT NULL,
    environ TEXT NOT NULL,
    mounts TEXT NOT NULL,
    vfolder_mounts TEXT DEFAULT '[]' NOT NULL,
    startup_command TEXT,
    bootstrap_script TEXT,
    callback_url TEXT,
    starts_at DATETIME,
    dependencies TEXT NOT NULL,
    scaling_group VARCHAR(64) NOT NULL,
    designated_agents TEXT NOT NULL,
    preopen_ports TEXT NOT NULL,
    batch_timeout_s FLOAT,
    exec_timeout_s FLOAT,
    priority INTEGER NOT NULL,
    num_queries INTEGER NOT NULL,
    reason VARCHAR(32) NOT NULL,
    not_before DATETIME,
    starting_over BOOLEAN DEFAULT 0 NOT NULL,
    created_at DATETIME NOT NULL,
    scheduled_at DATETIME,
    started_at DATETIME,
    terminated_at DATETIME,
    array_id VARCHAR(36),
    array_name VARCHAR(64),
    array_index INTEGER,
    array_parallel INTEGER,
    device_requests TEXT DEFAULT '[]' NOT NULL,
    trace VARCHAR(55),
    plugin_options TEXT DEFAULT '{}' NOT NULL,
    claim_id VARCHAR(36),
    claim_name VARCHAR(64),
    diagnosed_devices TEXT DEFAULT '{}' NOT NULL,
    sealed_environ TEXT DEFAULT '{}' NOT NULL,
    CONSTRAINT pk_sessions PRIMARY KEY (id)
);
CREATE TABLE share_histories (
    resource_group VARCHAR(64) NOT NULL,
    used TEXT NOT NULL,
    at DATETIME NOT NULL,
    CONSTRAINT pk_share_histories PRIMARY KEY (resource_group)
);
CREATE TABLE storage_policies (
    kind VARCHAR(32) NOT NULL,
    name VARCHAR(256) NOT NULL,
    created_at DATETIME NOT NULL,
    max_vfolder_count INTEGER NOT NULL,
    max_quota_scope_size BIGINT NOT NULL,
    CONSTRAINT pk_storage_policies PRIMARY KEY (kind, name)
);
CREATE TABLE users (
    uuid VARCHAR(36) NOT NULL,
    username VARCHAR(64) NOT NULL,
    email VARCHAR(256) NOT NULL,
    password TEXT,
    role VARCHAR(32) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    full_name VARCHAR(256) NOT NULL,
    description TEXT NOT NULL,
    need_password_change BOOLEAN NOT NULL,
    status VARCHAR(32) NOT NULL,
    status_info TEXT,
    created_at DATETIME NOT NULL,
    modified_at DATETIME NOT NULL,
    main_access_key VARCHAR(20),
    resource_policy VARCHAR(256) DEFAULT 'default' NOT NULL,
    allowed_client_ip TEXT DEFAULT '[]' NOT NULL,
    totp_activated BOOLEAN DEFAULT 0 NOT NULL,
    sudo_session_enabled BOOLEAN DEFAULT 0 NOT NULL,
    password_changed_at DATETIME,
    CONSTRAINT pk_users PRIMARY KEY (uuid),
    CONSTRAINT uq_users_email UNIQUE (email),
    CONSTRAINT uq_users_username UNIQUE (username)
);
CREATE TABLE vfolders (
    id VARCHAR(36) NOT NULL,
    name VARCHAR(64) NOT NULL,
    host VARCHAR(128) NOT NULL,
    quota_scope VARCHAR(64) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    ownership_type VARCHAR(32) NOT NULL,
    user_id VARCHAR(36),
    group_id VARCHAR(36),
    usage_mode VARCHAR(32) NOT NULL,
    permission VARCHAR(32) NOT NULL,
    status VARCHAR(32) NOT NULL,
    status_info TEXT,
    status_changed DATETIME NOT NULL,
    cloneable BOOLEAN NOT NULL,
    cloned_from VARCHAR(36),
    creator VARCHAR(256) NOT NULL,
    max_size BIGINT,
    created_at DATETIME NOT NULL,
    last_used DATETIME,
    unmanaged_path TEXT,
    CONSTRAINT pk_vfolders PRIMARY KEY (id)
);
CREATE TABLE artifacts (
    id VARCHAR(36) NOT NULL,
    registry_id VARCHAR(36) NOT NULL,
    type VARCHAR(32) NOT NULL,
    name VARCHAR(256) NOT NULL,
    description TEXT NOT NULL,
    readme TEXT,
    extra TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    scanned_at DATETIME NOT NULL,
    restricted BOOLEAN DEFAULT 0 NOT NULL,
    viewers TEXT,
    CONSTRAINT pk_artifacts PRIMARY KEY (id),
    CONSTRAINT fk_artifacts_registry_id_artifact_registries FOREIGN KEY(registry_id) REFERENCES artifact_registries (id) ON DELETE CASCADE,
    CONSTRAINT uq_artifacts_registry_id_type_name UNIQUE (registry_id, type, name)
);
CREATE TABLE kernels (
    id VARCHAR(36) NOT NULL,
    session_id VARCHAR(36) NOT NULL,
    cluster_role VARCHAR(16) NOT NULL,
    cluster_idx INTEGER NOT NULL,
    local_rank INTEGER NOT NULL,
    cluster_hostname VARCHAR(64) NOT NULL,
    image VARCHAR(512) NOT NULL,
    architecture VARCHAR(32) NOT NULL,
    status VARCHAR(32) NOT NULL,
    reason VARCHAR(32) NOT NULL,
    status_info TEXT,
    status_data TEXT NOT NULL,
    status_changed DATETIME NOT NULL,
    attempt INTEGER NOT NULL,
    agent VARCHAR(64),
    requested_slots TEXT NOT NULL,
    occupied_slots TEXT NOT NULL,
    devices TEXT NOT NULL,
    generation INTEGER NOT NULL,
    attached_devices TEXT NOT NULL,
    service_ports TEXT NOT NULL,
    container_id VARCHAR(128),
    exit_code INTEGER,
    role_options TEXT DEFAULT '{}' NOT NULL,
    last_stat TEXT,
    created_at DATETIME NOT NULL,
    started_at DATETIME,
    terminated_at DATETIME,
    CONSTRAINT pk_kernels PRIMARY KEY (id),
    CONSTRAINT fk_kernels_session_id_sessions FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE memberships (
    user_id VARCHAR(36) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    is_admin BOOLEAN DEFAULT 0 NOT NULL,
    CONSTRAINT pk_memberships PRIMARY KEY (user_id, group_id),
    CONSTRAINT fk_memberships_group_id_groups FOREIGN KEY(group_id) REFERENCES groups (id) ON DELETE CASCADE,
    CONSTRAINT fk_memberships_user_id_users FOREIGN KEY(user_id) REFERENCES users (uuid) ON DELETE CASCADE
);
CREATE TABLE scaling_group_links (
    scaling_group VARCHAR(64) NOT NULL,
    kind VARCHAR(16) NOT NULL,
    target VARCHAR(64) NOT NULL,
    CONSTRAINT pk_scaling_group_links PRIMARY KEY (scaling_group, kind, target),
    CONSTRAINT fk_scaling_group_links_scaling_group_scaling_groups FOREIGN KEY(scaling_group) REFERENCES scaling_groups (name) ON DELETE CASCADE
);
CREATE TABLE session_activities (
    session_id VARCHAR(36) NOT NULL,
    last_access DATETIME,
    usage TEXT NOT NULL,
    CONSTRAINT pk_session_activities PRIMARY KEY (session_id),
    CONSTRAINT fk_session_activities_session_id_sessions FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE session_artifacts (
    session_id VARCHAR(36) NOT NULL,
    revision_id VARCHAR(36) NOT NULL,
    CONSTRAINT pk_session_artifacts PRIMARY KEY (session_id, revision_id),
    CONSTRAINT fk_session_artifacts_session_id_sessions FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE session_dependencies (
    session_id VARCHAR(36) NOT NULL,
    depends_on VARCHAR(36) NOT NULL,
    CONSTRAINT pk_session_dependencies PRIMARY KEY (session_id, depends_on),
    CONSTRAINT fk_session_dependencies_session_id_sessions FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE session_vfolders (
    session_id VARCHAR(36) NOT NULL,
    folder_id VARCHAR(36) NOT NULL,
    CONSTRAINT pk_session_vfolders PRIMARY KEY (session_id, folder_id),
    CONSTRAINT fk_session_vfolders_session_id_sessions FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE
);
CREATE TABLE vfolder_invitations (
    id VARCHAR(36) NOT NULL,
    folder_id VARCHAR(36) NOT NULL,
    inviter VARCHAR(256) NOT NULL,
    invitee VARCHAR(256) NOT NULL,
    permission VARCHAR(32) NOT NULL,
    state VARCHAR(32) NOT NULL,
    created_at DATETIME NOT NULL,
    modified_at DATETIME NOT NULL,
    CONSTRAINT pk_vfolder_invitations PRIMARY KEY (id),
    CONSTRAINT fk_vfolder_invitations_folder_id_vfolders FOREIGN KEY(folder_id) REFERENCES vfolders (id) ON DELETE CASCADE
);
CREATE TABLE vfolder_permissions (
    folder_id VARCHAR(36) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    permission VARCHAR(32) NOT NULL,
    CONSTRAINT pk_vfolder_permissions PRIMARY KEY (folder_id, user_id),
    CONSTRAINT fk_vfolder_permissions_folder_id_vfolders FOREIGN KEY(folder_id) REFERENCES vfolders (id) ON DELETE CASCADE
);
CREATE TABLE artifact_revisions (
    id VARCHAR(36) NOT NULL,
    artifact_id VARCHAR(36) NOT NULL,
    version VARCHAR(256) NOT NULL,
    status VARCHAR(32) NOT NULL,
    status_info TEXT,
    status_changed DATETIME NOT NULL,
    generation INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    residue BOOLEAN NOT NULL,
    size BIGINT,
    file_count INTEGER,
    digest VARCHAR(128),
    imported_digest VARCHAR(128),
    source TEXT NOT NULL,
    remote_status VARCHAR(32),
    stages TEXT,
    delegated BOOLEAN NOT NULL,
    began_at DATETIME,
    created_at DATETIME NOT NULL,
    last_used DATETIME,
    CONSTRAINT pk_artifact_revisions PRIMARY KEY (id),
    CONSTRAINT fk_artifact_revisions_artifact_id_artifacts FOREIGN KEY(artifact_id) REFERENCES artifacts (id) ON DELETE CASCADE,
    CONSTRAINT uq_artifact_revisions_artifact_id_version UNIQUE (artifact_id, version)
);
CREATE TABLE kernel_logs (
    kernel_id VARCHAR(36) NOT NULL,
    tail BLOB NOT NULL,
    CONSTRAINT pk_kernel_logs PRIMARY KEY (kernel_id),
    CONSTRAINT fk_kernel_logs_kernel_id_kernels FOREIGN KEY(kernel_id) REFERENCES kernels (id) ON DELETE CASCADE
);
CREATE TABLE totp_devices (
    user_id VARCHAR(36) NOT NULL,
    "key" TEXT NOT NULL,
    is_active BOOLEAN NOT NULL,
    created_at DATETIME NOT NULL,
    last_step BIGINT NOT NULL,
    failures INTEGER NOT NULL,
    failed_at DATETIME,
    CONSTRAINT pk_totp_devices PRIMARY KEY (user_id),
    CONSTRAINT fk_totp_devices_user_id_users FOREIGN KEY(user_id) REFERENCES users (uuid) ON DELETE CASCADE
);
CREATE TABLE recovery_codes (
    user_id VARCHAR(36) NOT NULL,
    digest VARCHAR(64) NOT NULL,
    CONSTRAINT pk_recovery_codes PRIMARY KEY (user_id, digest),
    CONSTRAINT fk_recovery_codes_user_id_users FOREIGN KEY(user_id) REFERENCES users (uuid) ON DELETE CASCADE
);
CREATE TABLE old_passwords (
    id INTEGER NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    password TEXT NOT NULL,
    CONSTRAINT pk_old_passwords PRIMARY KEY (id),
    CONSTRAINT fk_old_passwords_user_id_users FOREIGN KEY(user_id) REFERENCES users (uuid) ON DELETE CASCADE
);
CREATE TABLE sign_ins (
    id INTEGER NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    at DATETIME NOT NULL,
    address VARCHAR(64) NOT NULL,
    method VARCHAR(64) NOT NULL,
    outcome VARCHAR(64) NOT NULL,
    CONSTRAINT pk_sign_ins PRIMARY KEY (id),
    CONSTRAINT fk_sign_ins_user_id_users FOREIGN KEY(user_id) REFERENCES users (uuid) ON DELETE CASCADE
);
CREATE TABLE endpoints (
    id VARCHAR(36) NOT NULL,
    name VARCHAR(64) NOT NULL,
    active_name VARCHAR(64),
    version INTEGER NOT NULL,
    status VARCHAR(32) NOT NULL,
    reason VARCHAR(32) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    group_name VARCHAR(64) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    user_email VARCHAR(256) NOT NULL,
    access_key VARCHAR(20) NOT NULL,
    created_by VARCHAR(20) NOT NULL,
    resource_group VARCHAR(64) NOT NULL,
    open_to_public BOOLEAN NOT NULL,
    desired INTEGER NOT NULL,
    url TEXT,
    published VARCHAR(64) NOT NULL,
    policy TEXT NOT NULL,
    explanation TEXT NOT NULL,
    problem TEXT,
    created_at DATETIME NOT NULL,
    changed_at DATETIME NOT NULL,
    destroyed_at DATETIME,
    scaling TEXT,
    scaled TEXT,
    CONSTRAINT pk_endpoints PRIMARY KEY (id),
    CONSTRAINT uq_endpoints_user_id_active_name UNIQUE (user_id, active_name)
);
CREATE TABLE endpoint_revisions (
    id VARCHAR(36) NOT NULL,
    endpoint_id VARCHAR(36) NOT NULL,
    number INTEGER NOT NULL,
    status VARCHAR(32) NOT NULL,
    reason VARCHAR(32) NOT NULL,
    spec TEXT NOT NULL,
    failures INTEGER NOT NULL,
    failed_at DATETIME,
    step INTEGER NOT NULL,
    step_since DATETIME,
    weight FLOAT NOT NULL,
    created_at DATETIME NOT NULL,
    changed_at DATETIME NOT NULL,
    CONSTRAINT pk_endpoint_revisions PRIMARY KEY (id),
    CONSTRAINT fk_endpoint_revisions_endpoint_id_endpoints FOREIGN KEY(endpoint_id) REFERENCES endpoints (id) ON DELETE CASCADE,
    CONSTRAINT uq_endpoint_revisions_endpoint_id_number UNIQUE (endpoint_id, number)
);
CREATE TABLE endpoint_replicas (
    id VARCHAR(36) NOT NULL,
    endpoint_id VARCHAR(36) NOT NULL,
    revision_id VARCHAR(36) NOT NULL,
    status VARCHAR(32) NOT NULL,
    reason VARCHAR(32) NOT NULL,
    detail TEXT,
    traffic_ratio FLOAT NOT NULL,
    route TEXT,
    created_at DATETIME NOT NULL,
    changed_at DATETIME NOT NULL,
    started_at DATETIME,
    ready_at DATETIME,
    CONSTRAINT pk_endpoint_replicas PRIMARY KEY (id),
    CONSTRAINT fk_endpoint_replicas_endpoint_id_endpoints FOREIGN KEY(endpoint_id) REFERENCES endpoints (id) ON DELETE CASCADE
);
CREATE TABLE endpoint_tokens (
    id VARCHAR(36) NOT NULL,
    endpoint_id VARCHAR(36) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    created_at DATETIME NOT NULL,
    valid_until DATETIME NOT NULL,
    CONSTRAINT pk_endpoint_tokens PRIMARY KEY (id),
    CONSTRAINT fk_endpoint_tokens_endpoint_id_endpoints FOREIGN KEY(endpoint_id) REFERENCES endpoints (id) ON DELETE CASCADE
);
CREATE TABLE endpoint_events (
    id INTEGER NOT NULL,
    endpoint_id VARCHAR(36) NOT NULL,
    at DATETIME NOT NULL,
    subject VARCHAR(64) NOT NULL,
    status VARCHAR(32) NOT NULL,
    reason VARCHAR(64) NOT NULL,
    detail TEXT,
    data TEXT NOT NULL,
    CONSTRAINT pk_endpoint_events PRIMARY KEY (id),
    CONSTRAINT fk_endpoint_events_endpoint_id_endpoints FOREIGN KEY(endpoint_id) REFERENCES endpoints (id) ON DELETE CASCADE
);
CREATE TABLE endpoint_scaling_rules (
    id VARCHAR(36) NOT NULL,
    endpoint_id VARCHAR(36) NOT NULL,
    rule TEXT NOT NULL,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_endpoint_scaling_rules PRIMARY KEY (id),
    CONSTRAINT fk_endpoint_scaling_rules_endpoint_id_endpoints FOREIGN KEY(endpoint_id) REFERENCES endpoints (id) ON DELETE CASCADE
);
CREATE TABLE endpoint_usage (
    id VARCHAR(36) NOT NULL,
    endpoint_id VARCHAR(36) NOT NULL,
    hour INTEGER NOT NULL,
    token VARCHAR(64) NOT NULL,
    user_id VARCHAR(36),
    revision_id VARCHAR(36),
    replica_id VARCHAR(36),
    requests INTEGER NOT NULL,
    errors INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    busy_ms INTEGER NOT NULL,
    CONSTRAINT pk_endpoint_usage PRIMARY KEY (id),
    CONSTRAINT fk_endpoint_usage_endpoint_id_endpoints FOREIGN KEY(endpoint_id) REFERENCES endpoints (id) ON DELETE CASCADE
);
CREATE TABLE endpoint_usage_positions (
    source VARCHAR(64) NOT NULL,
    last INTEGER NOT NULL,
    CONSTRAINT pk_endpoint_usage_positions PRIMARY KEY (source)
);
CREATE TABLE device_claims (
    id VARCHAR(36) NOT NULL,
    name VARCHAR(64) NOT NULL,
    version INTEGER NOT NULL,
    status VARCHAR(32) NOT NULL,
    status_info TEXT,
    status_changed DATETIME NOT NULL,
    is_deleting BOOLEAN NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    group_name VARCHAR(64) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    user_email VARCHAR(256) NOT NULL,
    access_key VARCHAR(20) NOT NULL,
    scaling_group VARCHAR(64) NOT NULL,
    requested_slots TEXT NOT NULL,
    device_requests TEXT NOT NULL,
    idle_timeout_s FLOAT,
    created_at DATETIME NOT NULL,
    agent VARCHAR(64),
    occupied_slots TEXT NOT NULL,
    devices TEXT NOT NULL,
    allocated_at DATETIME,
    idle_since DATETIME,
    CONSTRAINT pk_device_claims PRIMARY KEY (id)
);
CREATE TABLE claim_spans (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    claim_id VARCHAR(36) NOT NULL,
    domain_name VARCHAR(64) NOT NULL,
    group_id VARCHAR(36) NOT NULL,
    group_name VARCHAR(64) NOT NULL,
    user_id VARCHAR(36) NOT NULL,
    slots TEXT NOT NULL,
    started_at DATETIME NOT NULL,
    terminated_at DATETIME NOT NULL
);
CREATE INDEX ix_agents_scaling_group ON agents (scaling_group);
CREATE INDEX ix_agents_status ON agents (status);
CREATE INDEX ix_audit_logs_at ON audit_logs (at);
CREATE INDEX ix_background_tasks_status ON background_tasks (status);
CREATE INDEX ix_error_logs_created_at ON error_logs (created_at);
CREATE INDEX ix_error_logs_user_id ON error_logs (user_id);
CREATE INDEX ix_image_aliases_image ON image_aliases (image);
CREATE INDEX ix_images_registry_scanned_at ON images (registry, scanned_at);
CREATE INDEX ix_images_repository ON images (repository);
CREATE INDEX ix_kept_answers_begun_at ON kept_answers (begun_at);
CREATE INDEX ix_keypairs_user_id ON keypairs (user_id);
CREATE INDEX ix_session_callbacks_session_id ON session_callbacks (session_id);
CREATE INDEX ix_session_events_at ON session_events (at);
CREATE INDEX ix_session_events_session_id ON session_events (session_id);
CREATE INDEX ix_session_templates_domain_name ON session_templates (domain_name);
CREATE INDEX ix_session_templates_user_id ON session_templates (user_id);
CREATE INDEX ix_sessions_created ON sessions (created_at, id);
CREATE INDEX ix_sessions_owner ON sessions (access_key, created_at);
CREATE INDEX ix_sessions_status ON sessions (status);
CREATE UNIQUE INDEX uq_sessions_live_name ON sessions (access_key, name) WHERE status NOT IN ('CANCELLED', 'ERROR', 'TERMINATED');
CREATE UNIQUE INDEX uq_sessions_vni ON sessions (vni);
CREATE INDEX ix_vfolders_group_id ON vfolders (group_id);
CREATE INDEX ix_vfolders_status ON vfolders (status);
CREATE INDEX ix_vfolders_user_id ON vfolders (user_id);
CREATE UNIQUE INDEX uq_vfolders_live_name_of_group ON vfolders (group_id, name) WHERE status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending');
CREATE UNIQUE INDEX uq_vfolders_live_name_of_user ON vfolders (user_id, name) WHERE status NOT IN ('delete-complete', 'delete-error', 'delete-ongoing', 'delete-pending');
CREATE INDEX ix_artifacts_name ON artifacts (name);
CREATE INDEX ix_kernels_agent ON kernels (agent);
CREATE INDEX ix_kernels_session_id ON kernels (session_id);
CREATE INDEX ix_kernels_span ON kernels (terminated_at, started_at);
CREATE INDEX ix_kernels_status ON kernels (status);
CREATE INDEX ix_session_artifacts_revision_id ON session_artifacts (revision_id);
CREATE INDEX ix_session_dependencies_depends_on ON session_dependencies (depends_on);
CREATE INDEX ix_session_vfolders_folder_id ON session_vfolders (folder_id);
CREATE INDEX ix_vfolder_invitations_invitee ON vfolder_invitations (invitee);
CREATE INDEX ix_vfolder_invitations_inviter ON vfolder_invitations (inviter);
CREATE UNIQUE INDEX uq_vfolder_invitations_pending ON vfolder_invitations (folder_id, invitee) WHERE state = 'pending';
CREATE INDEX ix_vfolder_permissions_user_id ON vfolder_permissions (user_id);
CREATE INDEX ix_artifact_revisions_residue ON artifact_revisions (residue);
CREATE INDEX ix_artifact_revisions_status_artifact_id ON artifact_revisions (status, artifact_id);
CREATE INDEX ix_sessions_array ON sessions (array_id, array_index);
CREATE INDEX ix_sessions_named ON sessions (name, access_key, created_at);
CREATE INDEX ix_old_passwords_user_id ON old_passwords (user_id);
CREATE INDEX ix_sign_ins_at ON sign_ins (at);
CREATE INDEX ix_sign_ins_user_id_id ON sign_ins (user_id, id);
CREATE INDEX ix_endpoints_status ON endpoints (status);
CREATE INDEX ix_endpoint_replicas_endpoint_id ON endpoint_replicas (endpoint_id);
CREATE INDEX ix_endpoint_tokens_endpoint_id ON endpoint_tokens (endpoint_id);
CREATE INDEX ix_endpoint_events_endpoint ON endpoint_events (endpoint_id, id);
CREATE INDEX ix_endpoint_events_at ON endpoint_events (at);
CREATE INDEX ix_endpoint_scaling_rules_endpoint_id ON endpoint_scaling_rules (endpoint_id);
CREATE INDEX ix_endpoint_usage_hour ON endpoint_usage (hour);
CREATE INDEX ix_endpoint_usage_endpoint ON endpoint_usage (endpoint_id, hour);
CREATE INDEX ix_device_claims_agent ON device_claims (agent);
CREATE INDEX ix_device_claims_owner ON device_claims (access_key);
CREATE UNIQUE INDEX uq_device_claims_name ON device_claims (user_id, group_id, name);
CREATE INDEX ix_claim_spans_terminated_at ON claim_spans (terminated_at);
INSERT INTO alembic_version VALUES ('0038');
