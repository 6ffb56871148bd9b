{{- define "kube-acc.labels" -}}
app.kubernetes.io/name: kube-acc
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "kube-acc.namespace" -}}
{{- if ne .Release.Namespace "kube-acc" -}}
{{- fail "install kube-acc into the namespace kube-acc: its admission policies name the accounts there" -}}
{{- end -}}
{{- .Release.Namespace -}}
{{- end -}}
