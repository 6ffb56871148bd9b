import { environOf } from '../../api/environ';
import { errorsByField } from '../../api/forms/fields';
import { linesOf } from '../../api/forms/lines';
import type { components } from '../../api/generated/rest';
import { shellWord } from '../../api/shell';
import type { Tone } from '../../components/StatusBadge';
import { customVariant, mostReplicas, type ServiceDraft } from './draft';
import { policyChangeOf, policyDraftFrom } from './rollout';

export type CreateServiceBody = components['schemas']['CreateServiceBody'];

const tones: Record<string, Tone> = {
  // of services
  provisioning: 'busy',
  healthy: 'good',
  degraded: 'warn',
  unhealthy: 'bad',
  idle: 'idle',
  destroying: 'busy',
  destroyed: 'idle',
  // of replicas
  warming: 'busy',
  ready: 'good',
  draining: 'busy',
  terminating: 'busy',
  terminated: 'idle',
  // of revisions
  pending: 'wait',
  'rolling-out': 'busy',
  active: 'good',
  retiring: 'busy',
  retired: 'idle',
  'rolling-back': 'warn',
  failed: 'bad',
};

/** Returns how a status of a service, a replica or a revision looks; one that is not known has no colour. */
export function toneOf(status: string | null | undefined): Tone {
  return tones[status ?? ''] ?? 'idle';
}

const settled = new Set(['healthy', 'idle', 'destroyed']);

/** Milliseconds until a service is asked for again: it changes soon unless its status is one that stays. */
export function pollIntervalOf(status: string | undefined): number {
  return status === undefined || settled.has(status) ? 30_000 : 5_000;
}

export function isLive(status: string | null | undefined): boolean {
  return status !== 'destroying' && status !== 'destroyed';
}

const ending = new Set(['draining', 'terminating', 'terminated']);

/** The status of a replica that is not on its way to its end. */
export function canBeEnded(status: string): boolean {
  return !ending.has(status);
}

/** The status of a revision that can be rolled back. */
export function isRollingOut(status: string): boolean {
  return status === 'rolling-out' || status === 'pending';
}

/** Returns the share of each weight in their sum, in whole per cent; none where nothing has a weight. */
export function sharesOf(weights: readonly number[]): (number | null)[] {
  const sum = weights.reduce((total, weight) => total + weight, 0);
  return weights.map((weight) => (sum > 0 ? Math.round((weight / sum) * 100) : null));
}

/** Returns an address that a browser may open; null for one that is no address of the web. */
export function webAddressOf(url: string | null | undefined): string | null {
  try {
    return ['http:', 'https:'].includes(new URL(url ?? '').protocol) ? (url ?? null) : null;
  } catch {
    return null;
  }
}

/**
 * Returns the line that calls a service. Servers of the known variants have the API of OpenAI; what others answer is
 * not known, so they are asked for their root.
 */
export function callOf(service: { url: string; variant: string; isPublic: boolean }, token = ''): string {
  const path = service.variant === customVariant ? '/' : '/v1/models';
  const address = shellWord(`${service.url.replace(/\/+$/, '')}${path}`);
  if (service.isPublic) return `curl ${address}`;
  return `curl -H ${token === '' ? '"Authorization: Bearer $TOKEN"' : shellWord(`Authorization: Bearer ${token}`)} ${address}`;
}

/** The fields of the rarer options that are texts. */
export const rareFields = [
  ...(['env', 'claim', 'port', 'version', 'modelName', 'mount', 'architecture', 'tag', 'owner'] as const),
  ...(['devices', 'variants', 'policy'] as const),
] satisfies (keyof ServiceDraft)[];
export type RareField = (typeof rareFields)[number];

export const mostKernels = mostReplicas;

/** Returns how many of the rarer options a draft uses. */
export function rareCount(draft: ServiceDraft): number {
  const counts = Number(draft.size > 1) + Number(draft.mode === 'multi-node');
  return rareFields.filter((name) => draft[name].trim() !== '').length + counts;
}

const isPort = (text: string) => /^\d{4,5}$/.test(text) && Number(text) >= 1024 && Number(text) < 65_536;

function policyChange(draft: ServiceDraft) {
  const policy = policyDraftFrom(draft.policy);
  return policy && policyChangeOf(policy);
}

/** Returns the fields of a draft that no request can be made of. */
export function faultsOf(draft: ServiceDraft): RareField[] {
  const port = draft.port.trim();
  return [
    ...(environOf(draft.env) === null ? (['env'] as const) : []),
    ...(port === '' || isPort(port) ? [] : (['port'] as const)),
    ...(policyChange(draft)?.wrong.length ? (['policy'] as const) : []),
  ];
}

/** Returns the body of a creation or a trial; null while the draft lacks what every request needs, or has a fault. */
export function bodyOf(draft: ServiceDraft): CreateServiceBody | null {
  if (draft.name.trim() === '' || draft.model === '' || draft.image === '' || faultsOf(draft).length > 0) return null;
  const text = (name: string, value: string) => (value.trim() === '' ? {} : { [name]: value.trim() });
  const lines = (name: string, value: string) => (value.trim() === '' ? {} : { [name]: linesOf(value) });
  const environ = environOf(draft.env) ?? {};
  const policy = policyChange(draft);
  const resources = Object.fromEntries(
    Object.entries(draft.amounts).filter(([, amount]) => amount.trim() !== '' && amount.trim() !== '0'),
  );
  return {
    name: draft.name.trim(),
    image: draft.image,
    runtime_variant: draft.variant,
    desired_session_count: draft.replicas,
    open_to_public: draft.isPublic,
    ...(draft.command.trim() && { startup_command: draft.command }),
    ...(draft.project && { group: draft.project }),
    ...text('arch', draft.architecture),
    ...text('tag', draft.tag),
    ...text('owner_access_key', draft.owner),
    ...(draft.port.trim() && { port: Number(draft.port) }),
    ...(draft.size > 1 && { cluster_size: draft.size }),
    ...(draft.mode === 'multi-node' && { cluster_mode: draft.mode }),
    ...(policy && { policy: policy.change }),
    config: {
      model: draft.model,
      ...text('model_definition_path', draft.definition),
      ...text('model_name', draft.modelName),
      ...text('model_version', draft.version),
      ...text('model_mount_destination', draft.mount),
      ...text('claim', draft.claim),
      ...lines('device_requests', draft.devices),
      ...lines('variant_requirements', draft.variants),
      ...(Object.keys(environ).length > 0 && { environ }),
      ...(draft.group && { scaling_group: draft.group }),
      ...(Object.keys(resources).length > 0 && { resources }),
    },
  } as CreateServiceBody;
}

/** Returns the line of the command line that does the same. */
export function commandOf(draft: ServiceDraft): string {
  const words = ['backend.ai', 'service', 'create', '-t', draft.name.trim() || 'NAME'];
  if (draft.definition.trim()) words.push('--model-definition-path', draft.definition.trim());
  if (draft.variant !== customVariant) words.push('--runtime-variant', draft.variant);
  if (draft.command.trim()) words.push('--startup-command', draft.command);
  const policy = policyChange(draft);
  const option = (name: string, value: string) => (value.trim() === '' ? [] : [name, value.trim()]);
  words.push(
    ...option('--model-name', draft.modelName),
    ...option('--model-version', draft.version),
    ...option('--model-mount-destination', draft.mount),
    ...option('--port', draft.port),
    ...option('--claim', draft.claim),
    ...option('--architecture', draft.architecture),
    ...option('--tag', draft.tag),
    ...option('--owner', draft.owner),
    ...linesOf(draft.devices).flatMap((line) => ['--device-request', line]),
    ...linesOf(draft.variants).flatMap((line) => ['--variant', line]),
    ...option('--policy', policy ? JSON.stringify(policy.change) : ''),
    ...(draft.size > 1 ? ['--cluster-size', String(draft.size)] : []),
    ...(draft.mode === 'multi-node' ? ['--cluster-mode', draft.mode] : []),
    ...Object.entries(environOf(draft.env) ?? {}).flatMap(([name, value]) => ['-e', `${name}=${value}`]),
  );
  for (const [slot, amount] of Object.entries(draft.amounts)) {
    if (amount.trim() !== '' && amount.trim() !== '0') words.push('-r', `${slot}=${amount.trim()}`);
  }
  if (draft.isPublic) words.push('--public');
  if (draft.project) words.push('--group', draft.project);
  if (draft.group) words.push('--resource-group', draft.group);
  words.push(draft.image || 'IMAGE', draft.model || 'MODEL');
  if (draft.replicas !== 1) words.push(String(draft.replicas));
  return words.map(shellWord).join(' ');
}

export type FieldName = keyof ServiceDraft;

/** The field of the form for each name that the manager gives in a problem, without a leading `config.`. */
const fieldNames: Record<string, FieldName> = {
  name: 'name',
  model: 'model',
  mounts: 'model',
  model_definition: 'model',
  model_definition_path: 'definition',
  image: 'image',
  arch: 'architecture',
  architecture: 'architecture',
  claim: 'claim',
  device_requests: 'devices',
  variant_requirements: 'variants',
  policy: 'policy',
  port: 'port',
  model_version: 'version',
  model_name: 'modelName',
  model_mount_destination: 'mount',
  tag: 'tag',
  owner_access_key: 'owner',
  environ: 'env',
  cluster_size: 'size',
  cluster_mode: 'mode',
  runtime_variant: 'variant',
  startup_command: 'command',
  startupCommand: 'command',
  group: 'project',
  scaling_group: 'group',
  scalingGroup: 'group',
  resources: 'amounts',
  resource_opts: 'amounts',
  desired_session_count: 'replicas',
  open_to_public: 'isPublic',
};

/** Returns what is wrong with each field of the form of a new service. */
export function fieldErrorsOf(error: unknown): Partial<Record<FieldName, string>> {
  return errorsByField(error, fieldNames).errors;
}

/** Returns the name by which an image is chosen: its first alias, or what it is called. */
export function imageName(image: {
  name?: string | null;
  tag?: string | null;
  aliases?: readonly (string | null)[] | null;
}): string {
  const alias = (image.aliases ?? []).find((name) => name !== null);
  return alias ?? (image.tag ? `${image.name}:${image.tag}` : (image.name ?? ''));
}

/** By what the use of a service is summed up, as the API names it. */
export const useGroupings = ['day', 'hour', 'token', 'user', 'revision', 'replica'] as const;
export type UseGrouping = (typeof useGroupings)[number];
export const isUseGrouping = (value: unknown): value is UseGrouping => useGroupings.some((each) => each === value);
