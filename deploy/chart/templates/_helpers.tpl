{{/* The release's name, with the program's in it. A second release, such as a canary, has another one. */}}
{{- define "kubeproxy.name" -}}
{{- if contains "kubeproxy" .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-kubeproxy" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "kubeproxy.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "kubeproxy.name" .) }}
{{- end }}

{{/* What selects the pods: it cannot be changed after the installation. */}}
{{- define "kubeproxy.selector" -}}
k8s-app: kubeproxy
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kubeproxy.labels" -}}
app.kubernetes.io/name: kubeproxy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "kubeproxy.image" -}}
{{- $repository := required "image.repository: required: the image that you have pushed, as registry.example.com/kubeproxy" .Values.image.repository -}}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}{{ else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{/* The configuration as YAML: that of deploy/base, the monitoring's address, and .Values.config over both. */}}
{{- define "kubeproxy.config" -}}
{{- $config := .Files.Get "files/config.yaml" | fromYaml -}}
{{- if .Values.monitoring.enabled }}{{- $_ := set $config "metricsBindAddress" "0.0.0.0:10249" }}{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml -}}
{{- end }}

{{/* The port of an address like 0.0.0.0:10256 or [::]:10256; kube-proxy's where it has none. */}}
{{- define "kubeproxy.healthPort" -}}
{{- regexFind ":[0-9]+$" (include "kubeproxy.config" . | fromYaml).healthzBindAddress | trimPrefix ":" | default "10256" -}}
{{- end }}

{{- define "kubeproxy.metricsPort" -}}
{{- regexFind ":[0-9]+$" (include "kubeproxy.config" . | fromYaml).metricsBindAddress | trimPrefix ":" | default "10249" -}}
{{- end }}
