import type { Domain, KeypairPolicy, Preset, Project, ResourceGroup, StoragePolicy } from '../queries';
import {
  bytesField,
  checkField,
  choiceField,
  countField,
  type Field,
  hostsField,
  jsonField,
  linesField,
  namesField,
  secondsField,
  secretField,
  sizeField,
  slotsField,
  textField,
} from './fields';
import { type AccessKey, type Opening, openGroupsField, type Person } from './queries';

export interface HostChoices {
  hosts: readonly string[];
  permissions: readonly string[];
}

const nameField = (row: object | null): Field[] => (row === null ? [textField('name', '', true)] : []);

const usualContainers = 64;

export function keypairPolicyFields(
  row: KeypairPolicy | null,
  { hosts, permissions }: HostChoices,
  words: { unlimited: string; limited: string },
): Field[] {
  return [
    ...nameField(row),
    slotsField('total_resource_slots', row?.total_resource_slots),
    choiceField('default_for_unspecified', row?.default_for_unspecified ?? 'UNLIMITED', [
      { value: 'UNLIMITED', label: words.unlimited },
      { value: 'LIMITED', label: words.limited },
    ]),
    countField('max_concurrent_sessions', row?.max_concurrent_sessions),
    countField('max_pending_session_count', row?.max_pending_session_count),
    slotsField('max_pending_session_resource_slots', row?.max_pending_session_resource_slots),
    countField('max_containers_per_session', row?.max_containers_per_session ?? usualContainers, null),
    secondsField('max_session_lifetime', row?.max_session_lifetime),
    secondsField('idle_timeout', row?.idle_timeout),
    countField('max_vfolder_count', row?.max_vfolder_count),
    bytesField('max_vfolder_size', row?.max_vfolder_size, 0),
    countField('max_claims', row?.max_claims),
    secondsField('max_claim_idle_time', row?.max_claim_idle_time),
    hostsField('allowed_vfolder_hosts', row?.allowed_vfolder_hosts, hosts, permissions),
  ];
}

export function storagePolicyFields(row: StoragePolicy | null): Field[] {
  return [
    ...nameField(row),
    countField('max_vfolder_count', row?.max_vfolder_count),
    bytesField('max_quota_scope_size', row?.max_quota_scope_size, -1),
  ];
}

export function presetFields(row: Preset | null): Field[] {
  return [
    ...nameField(row),
    slotsField('resource_slots', row?.resource_slots),
    sizeField('shared_memory', row?.shared_memory, 0),
    linesField(
      'device_requests',
      (row?.device_requests ?? []).filter((request) => request !== null),
    ),
  ];
}

/** What administrators of a domain, too, may say of a user. */
export function personFields(row: Person): Field[] {
  return [
    textField('full_name', row.full_name),
    textField('username', row.username, true),
    textField('description', row.description),
    secretField('password'),
    checkField('need_password_change', row.need_password_change),
    linesField(
      'allowed_client_ip',
      (row.allowed_client_ip ?? []).filter((network) => network !== null),
    ),
  ];
}

/** What only superadmins say of a user. */
export function personLimitFields(
  row: Person,
  roles: readonly string[],
  domains: readonly string[],
  policies: readonly string[],
): Field[] {
  const choice = (name: string, value: string | null | undefined, choices: readonly string[]) =>
    choiceField(name, value ?? '', [...new Set([value ?? '', ...choices])]);
  return [
    choice('role', row.role, roles),
    choice('domain_name', row.domain_name, domains),
    choice('resource_policy', row.resource_policy, policies),
    checkField('sudo_session_enabled', row.sudo_session_enabled),
  ];
}

/** What may be said of a keypair; `policies` are null for those who may not say its limits. */
export function accessKeyFields(row: AccessKey, policies: readonly string[] | null): Field[] {
  const networks = (row.allowed_client_ip ?? []).filter((network) => network !== null);
  const policy = row.resource_policy ?? '';
  return [
    linesField('allowed_client_ip', networks),
    ...(policies === null
      ? []
      : [
          {
            ...choiceField('resource_policy', policy, [...new Set([policy, ...policies])]),
            words: 'keypair_policy',
          },
          countField('rate_limit', row.rate_limit),
          countField('concurrency_limit', row.concurrency_limit),
          checkField('is_admin', row.is_admin),
        ]),
  ];
}

const orders = ['fifo', 'lifo', 'drf', 'fair-share'];
/** What a creation has to say, whatever is chosen in the form. */
export const newResourceGroup = { driver: 'static', scheduler: 'fifo' };

export function resourceGroupFields(row: ResourceGroup | null): Field[] {
  const order = row?.scheduler ?? newResourceGroup.scheduler;
  return [
    ...nameField(row),
    textField('description', row?.description),
    checkField('is_active', row === null || row.is_active),
    checkField('is_public', row?.is_public),
    choiceField('scheduler', order, [...new Set([...orders, order])]),
    jsonField('scheduler_opts', row?.scheduler_opts),
    textField('driver', row?.driver ?? newResourceGroup.driver, true),
    jsonField('driver_opts', row?.driver_opts),
    checkField('use_host_network', row?.use_host_network),
    textField('wsproxy_addr', row?.wsproxy_addr),
    secretField('wsproxy_api_token'),
  ];
}

/** The resource groups, of those that are not open to everybody, that are open to a domain, project or keypair. */
export function openGroups(all: readonly string[], open: readonly string[]): Field {
  return namesField(openGroupsField, open, all, (chosen): Opening => {
    const names = chosen as string[];
    return { add: names.filter((name) => !open.includes(name)), remove: open.filter((name) => !names.includes(name)) };
  });
}

/** What the manager takes for registries of any name. */
const allRegistries = '*';

export function domainFields(
  row: Domain | null,
  { hosts, permissions }: HostChoices,
  { all, open }: { all: readonly string[]; open: readonly string[] },
): Field[] {
  const registries = (row?.allowed_docker_registries ?? []).filter((name) => name !== null);
  return [
    ...nameField(row),
    textField('description', row?.description),
    checkField('is_active', row === null || row.is_active),
    slotsField('total_resource_slots', row?.total_resource_slots),
    openGroups(all, open),
    hostsField('allowed_vfolder_hosts', row?.allowed_vfolder_hosts, hosts, permissions),
    namesField('allowed_docker_registries', registries, [], (names) =>
      (names as string[]).length === 0 ? [allRegistries] : names,
    ),
  ];
}

const projectTypes = ['GENERAL', 'MODEL_STORE'];
const usualPolicy = 'default';

/** What may be said of a project by everybody who may change it. */
export function projectFields(row: Project | null, domains: readonly string[], ownDomain: string): Field[] {
  return [
    textField('name', row?.name, true),
    ...(row === null && domains.length > 0 ? [choiceField('domain_name', ownDomain, domains)] : []),
    textField('description', row?.description),
    checkField('is_active', row === null || row.is_active),
  ];
}

/** What only superadmins say of a project. */
export function projectLimitFields(
  row: Project | null,
  policies: readonly string[],
  { hosts, permissions }: HostChoices,
  { all, open }: { all: readonly string[]; open: readonly string[] },
): Field[] {
  const policy = row?.resource_policy ?? usualPolicy;
  return [
    choiceField('type', row?.type ?? 'GENERAL', projectTypes),
    choiceField('resource_policy', policy, [...new Set([policy, ...policies])]),
    slotsField('total_resource_slots', row?.total_resource_slots),
    openGroups(all, open),
    hostsField('allowed_vfolder_hosts', row?.allowed_vfolder_hosts, hosts, permissions),
  ];
}
