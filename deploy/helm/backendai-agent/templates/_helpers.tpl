{{- define "backendai-agent.name" -}}
{{- printf "%s-shard%s" .Release.Name (ternary "" (printf "-%s" .Values.shard) (empty .Values.shard)) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- define "backendai-agent.labels" -}}
app.kubernetes.io/name: backendai-agent
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: {{ include "backendai-agent.name" . }}
{{- end -}}
