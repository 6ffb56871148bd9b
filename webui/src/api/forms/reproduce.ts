import { shellWord } from '../shell';
import type { PluginOptions } from './pluginOptions';

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
  /** Where mounts are seen, and which of them cannot be written to. */
  paths?: Record<string, string>;
  readOnly?: string[];
  environ?: Record<string, string>;
  resourceOptions?: Record<string, string>;
  tag?: string;
  /** How long the program of a batch session may run, such as `2h`. */
  timeout?: string;
  startsAt?: string;
  dependencies?: string[];
  priority?: string;
  /** The script itself. */
  bootstrap?: string;
  ports?: number[];
  architecture?: string;
  runtimeClass?: string;
  owner?: string;
  agents?: string[];
  /** What it says to accelerator plugins, by plugin. */
  pluginOptions?: PluginOptions;
  domain?: string;
}

const isArrayRequest = (request: SessionRequest) => request.type === 'batch' && Boolean(request.array);

/** Returns a mount as the command line takes it: in the longer form where a colon or an equals sign is in the way. */
function mountWord(mount: string, path: string, isReadOnly: boolean): string {
  const permission = isReadOnly ? 'ro' : '';
  if (/[:=]/.test(mount.replace(/^artifact:/, '')) || /[:=]/.test(path)) {
    return [`source=${mount}`, ...(path ? [`target=${path}`] : []), ...(isReadOnly ? ['perm=ro'] : [])].join(',');
  }
  return [mount, ...(path || permission ? [path] : []), ...(permission ? [permission] : [])].join(':');
}

/** Returns a value of a plugin option: text as it is, unless it would be read as JSON. */
function optionText(value: unknown): string {
  if (typeof value !== 'string') return JSON.stringify(value);
  try {
    JSON.parse(value);
    return JSON.stringify(value);
  } catch {
    return value;
  }
}

/** Returns a literal of Python: JSON but for its three words. */
function literal(value: unknown): string {
  if (value === null) return 'None';
  if (typeof value === 'boolean') return value ? 'True' : 'False';
  if (Array.isArray(value)) return `[${value.map(literal).join(',')}]`;
  if (typeof value !== 'object') return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([name, item]) => `${JSON.stringify(name)}:${literal(item)}`)
    .join(',')}}`;
}

/** Returns the options of the command line for what few sessions ask for. */
function rareWords(request: SessionRequest): string[] {
  const pairs = (option: string, values: Record<string, string> = {}) =>
    Object.entries(values).flatMap(([name, value]) => [option, `${name}=${value}`]);
  const text = (option: string, value = '') => (value === '' ? [] : [option, value]);
  return [
    ...pairs('-e', request.environ),
    ...pairs('--resource-opts', request.resourceOptions),
    ...text('--tag', request.tag),
    ...text('--batch-timeout', request.timeout),
    ...text('--starts-at', request.startsAt),
    ...(request.dependencies ?? []).flatMap((session) => ['--depends', session]),
    ...text('--priority', request.priority),
    ...(request.bootstrap ? ['--bootstrap-script', '/dev/stdin'] : []),
    ...text('--preopen', request.ports?.join(',')),
    ...text('--architecture', request.architecture),
    ...text('--runtime-class', request.runtimeClass),
    ...text('--owner', request.owner),
    ...text('--assign-agent', request.agents?.join(',')),
    ...Object.entries(request.pluginOptions ?? {}).flatMap(([plugin, options]) =>
      Object.entries(options).flatMap(([name, value]) => ['--plugin-option', `${plugin}.${name}=${optionText(value)}`]),
    ),
    ...text('--domain', request.domain),
  ];
}

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
  for (const mount of request.mounts) {
    words.push('-m', mountWord(mount, request.paths?.[mount] ?? '', request.readOnly?.includes(mount) ?? false));
  }
  words.push(...rareWords(request), request.image || 'IMAGE', ...(isArray ? [request.command] : []));
  const line = words.map(shellWord).join(' ');
  // The command line reads the script from a file, which the copied line must not leave behind.
  return request.bootstrap ? `printf %s ${shellWord(request.bootstrap)} | ${line}` : line;
}

/** Returns the arguments of the client library for what few sessions ask for. */
function rareArguments(request: SessionRequest): string[] {
  const permissions = Object.fromEntries((request.readOnly ?? []).map((mount) => [mount, { permission: 'ro' }]));
  const values: Record<string, unknown> = {
    mount_map: request.paths,
    mount_options: permissions,
    envs: request.environ,
    resource_opts: request.resourceOptions,
    tag: request.tag,
    batch_timeout: request.timeout,
    starts_at: request.startsAt,
    dependencies: request.dependencies,
    priority: request.priority ? Number(request.priority) : undefined,
    bootstrap_script: request.bootstrap,
    preopen_ports: request.ports,
    architecture: request.architecture,
    runtime_class: request.runtimeClass,
    owner_access_key: request.owner,
    assign_agent: request.agents,
    plugin_options: request.pluginOptions,
    domain_name: request.domain,
  };
  // A number, zero too, says something; empty texts, lists and objects do not.
  const isThere = (value: unknown) =>
    typeof value === 'number' || (typeof value === 'object' ? Object.keys(value ?? {}).length > 0 : Boolean(value));
  return Object.entries(values)
    .filter(([, value]) => isThere(value))
    .map(([name, value]) => `${name}=${literal(value)}`);
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
    ...rareArguments(request),
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
