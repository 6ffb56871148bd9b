import { useTranslation } from 'react-i18next';
import { useMe, useRole } from '../../../api/me';
import type { Domain, KeypairPolicy, Preset, Project, ResourceGroup, StoragePolicy } from '../queries';
import { useDomains, usePolicies } from '../queries';
import { rolesFor } from '../rules';
import type { FormProps } from './EditableTable';
import { EditDialog } from './EditDialog';
import {
  accessKeyFields,
  domainFields,
  keypairPolicyFields,
  newResourceGroup,
  openGroups,
  personFields,
  personLimitFields,
  presetFields,
  projectFields,
  projectLimitFields,
  resourceGroupFields,
  storagePolicyFields,
} from './kinds';
import { type Kind, type ListedKind, useAccessKey, useHostChoices, useOpenGroups, usePerson } from './queries';

function useTitle(kind: Kind, name: string | null | undefined): string {
  const { t } = useTranslation('editing');
  return name ? t('changeOf', { name }) : t(`new.${kind as ListedKind}`);
}

export function KeypairPolicyForm({ row, onClose }: FormProps<KeypairPolicy>) {
  const { t } = useTranslation('editing');
  const choices = useHostChoices();
  const words = { unlimited: t('unlimited'), limited: t('limited') };
  return (
    <EditDialog
      kind="keypair"
      id={row?.name ?? null}
      title={useTitle('keypair', row?.name)}
      waitsFor={[choices]}
      fields={choices.data && keypairPolicyFields(row, choices.data, words)}
      onClose={onClose}
    />
  );
}

function StoragePolicyForm({ kind, row, onClose }: FormProps<StoragePolicy> & { kind: 'user' | 'project' }) {
  return (
    <EditDialog
      kind={kind}
      id={row?.name ?? null}
      title={useTitle(kind, row?.name)}
      fields={storagePolicyFields(row)}
      onClose={onClose}
    />
  );
}
export const UserPolicyForm = (props: FormProps<StoragePolicy>) => <StoragePolicyForm kind="user" {...props} />;
export const ProjectPolicyForm = (props: FormProps<StoragePolicy>) => <StoragePolicyForm kind="project" {...props} />;

export function PresetForm({ row, onClose }: FormProps<Preset>) {
  return (
    <EditDialog
      kind="preset"
      id={row?.name ?? null}
      title={useTitle('preset', row?.name)}
      fields={presetFields(row)}
      onClose={onClose}
    />
  );
}

export function PersonForm({ email, onClose }: { email: string; onClose: () => void }) {
  const role = useRole();
  const person = usePerson(email);
  const domains = useDomains();
  const policies = usePolicies();
  const namesOf = (items: readonly { name?: string | null }[]) => items.map(({ name }) => name ?? '');
  const isReady = domains.data && policies.data;
  const mayLimit = role === 'superadmin';
  return (
    <EditDialog
      kind="person"
      id={email}
      title={useTitle('person', email)}
      waitsFor={mayLimit ? [person, domains, policies] : [person]}
      fields={
        person.data && (isReady || !mayLimit)
          ? [
              ...personFields(person.data),
              ...(mayLimit && isReady
                ? personLimitFields(person.data, rolesFor(role), namesOf(domains.data), namesOf(policies.data.user))
                : []),
            ]
          : undefined
      }
      onClose={onClose}
    />
  );
}

export function AccessKeyForm({ accessKey, onClose }: { accessKey: string; onClose: () => void }) {
  const mayLimit = useRole() === 'superadmin';
  const keypair = useAccessKey(accessKey);
  const policies = usePolicies();
  const open = useOpenGroups('accessKey', accessKey, mayLimit);
  const names = policies.data?.keypair.map(({ name }) => name ?? '');
  return (
    <EditDialog
      kind="accessKey"
      id={accessKey}
      title={useTitle('accessKey', accessKey)}
      waitsFor={mayLimit ? [keypair, policies, open] : [keypair]}
      fields={
        keypair.data && ((names !== undefined && open.data) || !mayLimit)
          ? [
              ...accessKeyFields(keypair.data, mayLimit ? (names ?? []) : null),
              ...(mayLimit && open.data ? [openGroups(open.data.all, open.data.open)] : []),
            ]
          : undefined
      }
      onClose={onClose}
    />
  );
}

export function ResourceGroupForm({ row, onClose }: FormProps<ResourceGroup>) {
  return (
    <EditDialog
      kind="resourceGroup"
      id={row?.name ?? null}
      title={useTitle('resourceGroup', row?.name)}
      fields={resourceGroupFields(row)}
      always={newResourceGroup}
      onClose={onClose}
    />
  );
}

export function DomainForm({ row, onClose }: FormProps<Domain>) {
  const choices = useHostChoices();
  const open = useOpenGroups('domain', row?.name ?? null);
  return (
    <EditDialog
      kind="domain"
      id={row?.name ?? null}
      title={useTitle('domain', row?.name)}
      waitsFor={[choices, open]}
      fields={choices.data && open.data && domainFields(row, choices.data, open.data)}
      onClose={onClose}
    />
  );
}

/** What superadmins may say of a project. */
function WholeProjectForm({ row, onClose }: FormProps<Project>) {
  const me = useMe();
  const choices = useHostChoices();
  const open = useOpenGroups('group', row?.id ?? null);
  const domains = useDomains();
  const policies = usePolicies();
  const namesOf = (items: readonly { name?: string | null }[]) => items.map(({ name }) => name ?? '');
  const isReady = me.data && choices.data && open.data && domains.data && policies.data;
  return (
    <EditDialog
      kind="group"
      id={row?.id ?? null}
      title={useTitle('group', row?.name)}
      waitsFor={[me, choices, open, domains, policies]}
      fields={
        isReady && [
          ...projectFields(row, namesOf(domains.data), me.data.user?.domain_name ?? ''),
          ...projectLimitFields(row, namesOf(policies.data.project), choices.data, open.data),
        ]
      }
      onClose={onClose}
    />
  );
}

export function ProjectForm({ row, onClose }: FormProps<Project>) {
  const title = useTitle('group', row?.name);
  const isSuperadmin = useRole() === 'superadmin';
  if (isSuperadmin) return <WholeProjectForm row={row} onClose={onClose} />;
  return (
    <EditDialog kind="group" id={row?.id ?? null} title={title} fields={projectFields(row, [], '')} onClose={onClose} />
  );
}
