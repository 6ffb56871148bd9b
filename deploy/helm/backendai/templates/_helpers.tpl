{{- define "backendai.name" -}}
{{- printf "%s-%s" .root.Release.Name .daemon | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- define "backendai.labels" -}}
app.kubernetes.io/name: backendai
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .daemon }}
{{- end -}}

{{- /* What differs between the daemons. `base` is what the chart writes of a settings file; the tables of the values follow. */ -}}
{{- define "backendai.daemons" -}}
manager:
  values: manager
  file: manager.toml
  command: [backend.ai, mgr, -f, /etc/backendai/manager.toml, start-server]
  ports: {api: 8081, agents: 6011, tunnels: 6012}
  probe: {path: /readyz, port: api}
  # Its tables are changed by the first of a new version: none of an older one may run beside it.
  strategy: {type: Recreate}
  base: |
    data-dir = "/var/lib/backendai"
    [manager]
    service-addr = { host = "0.0.0.0", port = 8081 }
    [agent-link]
    bind = "tcp://0.0.0.0:6011"
    data-port = 6012
    advertise = "tcp://{{ include "backendai.name" (dict "root" . "daemon" "manager") }}.{{ .Release.Namespace }}.svc:6011"
    agent-keys = "/run/backendai/agents"
    key-file = "/run/backendai/keys/manager.key_secret"
    [secrets]
    key-file = "/run/backendai/keys/secrets.key"
web:
  values: web
  file: webserver.toml
  command: [backend.ai, web, start-server, -f, /etc/backendai/webserver.toml]
  ports: {http: 8090}
  probe: {path: /readyz, port: http}
  base: |
    [service]
    ip = "0.0.0.0"
    port = 8090
    [session]
    file = "/var/lib/backendai/logins.db"
    [api]
    endpoint = "http://{{ include "backendai.name" (dict "root" . "daemon" "manager") }}.{{ .Release.Namespace }}.svc:8081"
storage-proxy:
  values: storageProxy
  file: storage-proxy.toml
  command: [backend.ai, storage, start-server, -f, /etc/backendai/storage-proxy.toml]
  ports: {client: 6021, manager: 6022}
  probe: {path: /readyz, port: manager}
  base: |
    [api.client]
    service-addr = { host = "0.0.0.0", port = 6021 }
    [api.manager]
    service-addr = { host = "0.0.0.0", port = 6022 }
app-proxy-coordinator:
  values: appProxyCoordinator
  file: proxy-coordinator.toml
  command: [backend.ai, app-proxy-coordinator, start-server, -f, /etc/backendai/proxy-coordinator.toml]
  ports: {api: 10200}
  probe: {path: /health, port: api}
  base: |
    [proxy_coordinator]
    bind_addr = { host = "0.0.0.0", port = 10200 }
    data_dir = "/var/lib/backendai"
app-proxy-worker:
  values: appProxyWorker
  file: proxy-worker.toml
  command: [backend.ai, app-proxy-worker, start-server, -f, /etc/backendai/proxy-worker.toml]
  ports: {http: 10205}
  probe: {}
  base: |
    # All of its settings are values: which domain or ports it has, the installation knows.
{{- end -}}

{{- define "backendai.security" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}
