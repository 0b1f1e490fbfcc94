{{- define "ojs.name" -}}
{{- if contains "ojs" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-ojs" (.Release.Name | trunc 36 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "ojs.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* A list: the chart and the component. */ -}}
{{- define "ojs.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "ojs.labels" -}}
{{- $root := index . 0 -}}
{{ include "ojs.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end }}

{{- /* What every pod has in common. */ -}}
{{- define "ojs.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
volumes:
  - name: tmp
    emptyDir: {}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "ojs.annotations" -}}
{{- with .Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What every container has in common. A list: the chart, and variables of this container. */ -}}
{{- define "ojs.container" -}}
{{- $root := index . 0 -}}
{{- $name := include "ojs.name" $root -}}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
volumeMounts:
  - name: tmp
    mountPath: /tmp
envFrom:
  - secretRef: {name: {{ $root.Values.existingSecret }}}
env:
  - name: DJANGO_ALLOWED_HOSTS
    value: {{ concat $root.Values.allowedHosts (list $name (printf "%s.%s" $name $root.Release.Namespace) (printf "%s.%s.svc" $name $root.Release.Namespace) (printf "%s.%s.svc.cluster.local" $name $root.Release.Namespace)) | join "," | quote }}
{{- range $variable, $value := merge (dict) (index . 1) $root.Values.environment }}
  - name: {{ $variable }}
    value: {{ $value | quote }}
{{- end }}
{{- end }}

{{- /* The commands touch /tmp/alive as long as they are well: one that is stuck is restarted. */ -}}
{{- define "ojs.alive" -}}
livenessProbe:
  exec:
    command: ["sh", "-c", "test -n \"$(find /tmp/alive -mmin -1)\""]
  initialDelaySeconds: 20
  periodSeconds: 10
{{- end }}
