{{- define "tandem.labels" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/component: {{ .component }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* The kinds of workloads: those that Tandem ships, and those of the values, which come first. */}}
{{- define "tandem.kinds" -}}
{{- $known := dict }}
{{- $kinds := list }}
{{- range concat (.Values.scheduler.extender.config.kinds | default list) (.Files.Get "files/kinds.yaml" | fromYamlArray) }}
{{- $name := printf "%s.%s" .kind .group }}
{{- if not (hasKey $known $name) }}
{{- $_ := set $known $name true }}
{{- $kinds = append $kinds . }}
{{- end }}
{{- end }}
{{- toYaml $kinds }}
{{- end }}

{{/* Whether plans allocate ResourceClaims: "true" or "false". */}}
{{- define "tandem.gpuClaims" -}}
{{- dig "admission" "gpu_claims" false .Values.scheduler.extender.config -}}
{{- end }}

{{/* The agents' settings: with the DRA driver, the label of a node says how its GPUs are handed over. */}}
{{- define "tandem.agent.config" -}}
{{- $config := .Values.agent.config -}}
{{- if (.Values.dra).enabled }}{{ $config = merge (dict) $config (dict "hand_over" "label") }}{{ end -}}
{{- toYaml $config -}}
{{- end }}

{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* The image of one of our components. */}}
{{- define "tandem.image" -}}
{{- $image := .root.Values.image -}}
{{- $name := printf "tandem-%s" .component -}}
{{- if $image.registry }}{{ $name = printf "%s/%s" (trimSuffix "/" $image.registry) $name }}{{ end -}}
{{- with index $image.digests .component -}}
{{ $name }}@{{ . }}
{{- else -}}
{{ $name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* kube-scheduler of the cluster's own version, without what distributions append to it. */}}
{{- define "tandem.kubeScheduler.image" -}}
{{- $version := semver .Capabilities.KubeVersion.Version -}}
{{- $tag := printf "v%d.%d.%d" $version.Major $version.Minor $version.Patch -}}
{{ .Values.scheduler.kubeScheduler.repository }}:{{ .Values.scheduler.kubeScheduler.tag | default $tag }}
{{- end }}

{{- define "tandem.imagePullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Of a pod that meets the level `restricted` of Pod Security. */}}
{{- define "tandem.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "tandem.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* Replicas on different nodes and zones where there are several. */}}
{{- define "tandem.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tandem.selector" $.component | nindent 8 }}
  {{- end }}
{{- end }}

{{- define "tandem.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* "true" where the Prometheus operator's objects are to be made. */}}
{{- define "tandem.operator" -}}
{{- $mode := .Values.monitoring.operator -}}
{{- if or (eq $mode "always") (and (eq $mode "auto") (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) -}}true{{- end -}}
{{- end }}

{{/* The extender's settings: the user's, and on top what follows from the chart. */}}
{{- define "tandem.extender.config" -}}
{{- $namespace := .Release.Namespace -}}
{{- $service := printf "tandem-webhook.%s.svc" $namespace -}}
{{- $ours := dict
  "predictor_url" (printf "http://tandem-predictor.%s.svc:8090" $namespace)
  "predictor_token_file" "/var/run/secrets/tandem.gpu/predictor/token"
  "namespace" $namespace
  "agent_namespace" .Values.agent.namespace
  "public" (dict "service_names" (prepend .Values.webhook.serviceNames $service))
-}}
{{- if .Values.webhook.certManager.enabled }}
{{- $files := dict "tls_cert" "/etc/tandem-tls/tls.crt" "tls_key" "/etc/tandem-tls/tls.key" }}
{{- $_ := set $ours "public" (merge $ours.public $files) }}
{{- end }}
{{- $_ := set $ours "probes" (dict "host" "0.0.0.0" "port" 8881) }}
{{- $_ := set $ours "tunnel" (dict "host" "0.0.0.0" "port" 8444) }}
{{- if not .Values.scheduler.attach.enabled }}
{{- $_ := set $ours "verbs" (dict "shared_with_scheduler" "/run/tandem-verbs") }}
{{- else }}
{{- $files := dict "tls_cert" "/etc/tandem-verbs/tls.crt" "tls_key" "/etc/tandem-verbs/tls.key" "client_ca" "/etc/tandem-verbs/ca.crt" }}
{{- $_ := set $ours "verbs" (merge (dict "host" "0.0.0.0") $files) }}
{{- /* One replica acts, and no Lease of a scheduler in its pod says so. */}}
{{- $_ := set $ours "leader" (dict "always" true) }}
{{- end }}
{{- $config := mergeOverwrite (deepCopy .Values.scheduler.extender.config) $ours -}}
{{- $admission := get $config "admission" | default dict -}}
{{- $port := ternary .Values.agent.port 0 .Values.agent.progress -}}
{{- set $config "admission" (set $admission "agent_port" $port) | toYaml -}}
{{- end }}
