import { shellWord } from './shell';

/** What a session is asked for; amounts are those of one kernel, and empty texts are defaults. */
export interface SessionRequest {
  image: string;
  name: string;
  type: string;
  command: string;
  /** The indices of an array of batch sessions; empty for a single session. */
  array?: string;
  amounts: [slot: string, amount: string][];
  clusterSize: number;
  clusterMode: string;
  project: string;
  resourceGroup: string;
  mounts: string[];
  /** What says which devices: the claim that provides them, or what they must be. */
  claim?: string;
  variants?: string[];
  deviceRequests?: string[];
}

const isArrayRequest = (request: SessionRequest) => request.type === 'batch' && Boolean(request.array);

/** Returns the line of the command line that starts such a session. */
export function commandOf(request: SessionRequest): string {
  const isArray = isArrayRequest(request);
  const words = ['backend.ai', isArray ? 'submit' : 'start'];
  if (request.name) words.push('-t', request.name);
  if (isArray) words.push('--array', request.array ?? '');
  else if (request.type === 'batch') words.push('--type', 'batch', '-c', request.command);
  for (const [slot, amount] of request.amounts) words.push('-r', `${slot}=${amount}`);
  if (request.claim) words.push('--claim', request.claim);
  for (const variant of request.variants ?? []) words.push('--variant', variant);
  for (const text of request.deviceRequests ?? []) words.push('--device-request', text);
  if (request.clusterSize > 1) words.push('--cluster-size', String(request.clusterSize));
  if (request.clusterMode === 'multi-node') words.push('--cluster-mode', request.clusterMode);
  if (request.project) words.push('--group', request.project);
  if (request.resourceGroup) words.push('--resource-group', request.resourceGroup);
  for (const mount of request.mounts) words.push('-m', mount);
  return [...words, request.image || 'IMAGE', ...(isArray ? [request.command] : [])].map(shellWord).join(' ');
}

/** Returns the program that starts such a session by the client library. JSON strings are strings of Python too. */
export function programOf(request: SessionRequest): string {
  const text = (value: unknown) => JSON.stringify(value);
  const isArray = isArrayRequest(request);
  const lines = [
    text(request.image || 'IMAGE'),
    ...(isArray ? [text(request.array)] : []),
    ...(request.name ? [`name=${text(request.name)}`] : []),
    ...(request.type === 'batch'
      ? [...(isArray ? [] : ['type_="batch"']), `startup_command=${text(request.command)}`]
      : []),
    `resources={${request.amounts.map(([slot, amount]) => `${text(slot)}: ${text(amount)}`).join(', ')}}`,
    ...(request.claim ? [`claim=${text(request.claim)}`] : []),
    ...(request.variants?.length ? [`variant_requirements=${text(request.variants)}`] : []),
    ...(request.deviceRequests?.length ? [`device_requests=${text(request.deviceRequests)}`] : []),
    ...(request.clusterSize > 1 ? [`cluster_size=${request.clusterSize}`] : []),
    ...(request.clusterMode === 'multi-node' ? ['cluster_mode="multi-node"'] : []),
    ...(request.project ? [`group_name=${text(request.project)}`] : []),
    ...(request.resourceGroup ? [`scaling_group=${text(request.resourceGroup)}`] : []),
    ...(request.mounts.length > 0 ? [`mounts=${text(request.mounts)}`] : []),
  ];
  const list = lines.map((line) => `        ${line},\n`).join('');
  return [
    'from ai.backend.client.session import Session',
    '',
    'with Session() as api:',
    ...(isArray
      ? [`    array = api.SessionArray.create(\n${list}    )`, '    print(array.info())']
      : [`    session = api.ComputeSession.get_or_create(\n${list}    )`, '    print(session.id, session.status)']),
  ].join('\n');
}
