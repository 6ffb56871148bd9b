import { parseObject } from '../../api/filters';
import type { components } from '../../api/generated/rest';
import { devicesOf, holdersOf } from './rules';

export type DeviceOptions = components['schemas']['DeviceOptions'];
export type DeviceOperation = components['schemas']['DeviceOperationBody'];
export type Action = DeviceOperation['action'];

/** What an operation says besides the device. */
export type Argument = 'none' | 'profile' | 'image' | 'reason' | 'taint';

const argumentsOfActions: Partial<Record<Action, Argument>> = {
  partition: 'profile',
  program: 'image',
  cordon: 'reason',
  drain: 'reason',
  taint: 'taint',
};

export function argumentOf(action: Action): Argument {
  return argumentsOfActions[action] ?? 'none';
}

/** Operations that withhold a device from scheduling, and may do so for some time only. */
export function withholds(action: Action): boolean {
  return action === 'cordon' || action === 'drain' || action === 'taint';
}

/** Returns the plugins of an agent, those of accelerators first. */
export function pluginsOf(agent: { devices?: string | null; compute_plugins?: string | null }): string[] {
  const names = new Set([
    ...devicesOf(agent.devices).map(({ name }) => name),
    ...Object.keys(parseObject(agent.compute_plugins)),
  ]);
  const isIntrinsic = (name: string) => Number(name === 'cpu' || name === 'mem');
  return [...names].sort((a, b) => isIntrinsic(a) - isIntrinsic(b) || a.localeCompare(b));
}

export interface OperableDevice {
  id: string;
  profiles: components['schemas']['PartitionOption'][];
  image: string;
  cordon: string;
  isAttached: boolean;
  actions: Action[];
}

/** Returns the ids of the partitions among the devices of an agent that a plugin has. */
export function partitionsOf(agent: { devices?: string | null }, plugin: string): Set<string> {
  const devices = devicesOf(agent.devices).filter(({ name }) => name === plugin);
  return new Set(devices.flatMap(({ id, parent, partitions }) => (parent === '' ? partitions : [id])));
}

/** Returns the devices of a plugin, and then those that can be attached, each with what can be done with it now. */
export function operableDevices(options: DeviceOptions, partitions: ReadonlySet<string>): OperableDevice[] {
  const offered = (options.actions ?? []) as Action[];
  const attached = (options.devices ?? []).map((id): OperableDevice => {
    const profiles = options.profiles?.[id] ?? [];
    const cordon = options.cordons?.[id] ?? '';
    const actions = offered.filter((action) => {
      if (action === 'attach') return false;
      if (action === 'partition') return profiles.length > 0;
      if (action === 'unpartition') return partitions.has(id);
      if (action === 'uncordon') return cordon !== '';
      return true;
    });
    return { id, profiles, image: options.images?.[id] ?? '', cordon, isAttached: true, actions };
  });
  const attachable = (options.attachable ?? []).map(
    (id): OperableDevice => ({ id, profiles: [], image: '', cordon: '', isAttached: false, actions: ['attach'] }),
  );
  return [...attached, ...attachable];
}

/** Returns the sessions that hold a device of a plugin, or a partition that is counted at it, each once. */
export function sessionsHolding(
  agent: { devices?: string | null; compute_containers?: Parameters<typeof holdersOf>[0] | null },
  plugin: string,
  device: string,
): string[] {
  const own = devicesOf(agent.devices).find(({ name, id }) => name === plugin && id === device);
  const ids = new Set([device, ...(own?.partitions ?? [])]);
  const holders = holdersOf(agent.compute_containers ?? [], plugin);
  return [...new Set(holders.filter(({ devices }) => devices.some((id) => ids.has(id))).map(({ session }) => session))];
}

/** What the form of an operation has in its fields. */
export interface OperationDraft {
  profile: string;
  image: string;
  key: string;
  reason: string;
  hours: string | number;
  startsOver: boolean;
}

/** Returns the body of an operation; null while something that it needs is missing. */
export function operationOf(action: Action, device: string, draft: OperationDraft): DeviceOperation | null {
  const argument = {
    none: '',
    profile: draft.profile,
    image: draft.image.trim(),
    reason: draft.reason.trim(),
    taint: `${draft.key.trim()} ${draft.reason.trim()}`.trim(),
  }[argumentOf(action)];
  const isMissing = { none: false, reason: false, profile: true, image: true, taint: true }[argumentOf(action)];
  if (isMissing && argument === '') return null;
  if (argumentOf(action) === 'taint' && !/^\S+$/.test(draft.key.trim())) return null;
  const hours = Number(draft.hours);
  if (draft.hours !== '' && !(hours > 0)) return null;
  return {
    action,
    device_id: device,
    argument,
    ...(draft.hours === '' || !withholds(action) ? {} : { expires_after_s: hours * 3600 }),
    ...(action === 'drain' && draft.startsOver ? { start_over: true } : {}),
  } as DeviceOperation;
}
