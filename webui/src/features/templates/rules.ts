export type Kind = 'session' | 'cluster';

export const kindOf = (text: unknown): Kind => (text === 'cluster' ? 'cluster' : 'session');

/** What a new template begins with. */
export const samples: Record<Kind, string> = {
  session: `api_version: "6"
kind: taskTemplate
metadata:
  name: my-template
spec:
  kernel:
    image: python
    environ: {}
  resources:
    cpu: 1
    mem: 512m
`,
  cluster: `api_version: v1
kind: clusterTemplate
mode: single-node
metadata:
  name: my-cluster
spec:
  environ: {}
  mounts: []
  nodes:
    - role: main
      replicas: 1
      session_template: TEMPLATE-ID
    - role: sub
      replicas: 2
      session_template: TEMPLATE-ID
`,
};
