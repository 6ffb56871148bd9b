import {
  Button,
  Checkbox,
  Group,
  MultiSelect,
  NativeSelect,
  Paper,
  PasswordInput,
  Select,
  Stack,
  TextInput,
} from '@mantine/core';
import { useNavigate } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useMe, useRole } from '../../../api/me';
import { asProblem } from '../../../api/problems';
import { ButtonLink } from '../../../components/ButtonLink';
import { Notice } from '../../../components/Notice';
import { Page } from '../../../components/Page';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { RoleGate } from '../../../components/RoleGate';
import { useCreateUser, useDomains, useGroups, usePolicies } from '../queries';
import { placesOf, rolesFor } from '../rules';

const formFields = [
  'email',
  'username',
  'full_name',
  'password',
  'role',
  'domain_name',
  'group_ids',
  'resource_policy',
] as const;

function NewUserForm() {
  const { t } = useTranslation('people');
  const { t: common } = useTranslation('components');
  const role = useRole();
  const me = useMe();
  const navigate = useNavigate();
  const domains = useDomains();
  const groups = useGroups();
  const policies = usePolicies();
  const mayLimit = role === 'superadmin';
  const create = useCreateUser();
  const [email, setEmail] = useState('');
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const [mustChange, setMustChange] = useState(true);
  const [newRole, setNewRole] = useState('user');
  const [chosenDomain, setChosenDomain] = useState<string | null>(null);
  const [groupIds, setGroupIds] = useState<string[]>([]);
  const [userPolicy, setUserPolicy] = useState<string | null>(null);
  const [keypairPolicy, setKeypairPolicy] = useState<string | null>(null);
  const domain = chosenDomain ?? me.data?.user?.domain_name ?? '';
  const problem = create.isError ? asProblem(create.error) : null;
  const { errors, isPlaced } = placesOf(problem, formFields);
  const submit = (event: FormEvent) => {
    event.preventDefault();
    create.mutate(
      {
        email: email.trim(),
        full_name: name.trim() || null,
        password,
        need_password_change: mustChange,
        role: newRole,
        domain_name: domain,
        group_ids: groupIds.length > 0 ? groupIds : null,
        resource_policy: userPolicy,
        keypair_policy: keypairPolicy,
      },
      {
        onSuccess: ({ policyProblem }) => {
          if (policyProblem === null) void navigate({ to: '/people', search: { q: email.trim() } });
        },
      },
    );
  };
  if (create.isSuccess && create.data.policyProblem !== null) {
    return (
      <Stack maw={560}>
        <Notice tone="wait" role="status" title={t('create.madeWithout', { email: email.trim() })}>
          {t('create.madeWithoutHint')}
        </Notice>
        <ProblemAlert error={create.data.policyProblem} />
        <ButtonLink to="/people" search={{ q: email.trim() }}>
          {t('create.toList')}
        </ButtonLink>
      </Stack>
    );
  }
  return (
    <Paper withBorder p="md" maw={560} bg="var(--app-surface)">
      <form onSubmit={submit}>
        <Stack gap="sm">
          <TextInput
            label={t('column.email')}
            type="email"
            autoComplete="off"
            required
            withAsterisk={false}
            value={email}
            error={errors.email ?? errors.username}
            onChange={(event) => setEmail(event.currentTarget.value)}
          />
          <TextInput
            label={t('column.name')}
            autoComplete="off"
            maxLength={64}
            value={name}
            error={errors.full_name}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <PasswordInput
            label={t('create.password')}
            description={t('create.passwordHint')}
            autoComplete="new-password"
            required
            withAsterisk={false}
            value={password}
            error={errors.password}
            visibilityToggleButtonProps={{ 'aria-label': t('create.show'), tabIndex: 0 }}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
          <Checkbox
            label={t('create.mustChange')}
            checked={mustChange}
            onChange={(event) => setMustChange(event.currentTarget.checked)}
          />
          <Select
            label={t('column.role')}
            data={rolesFor(role)}
            allowDeselect={false}
            value={newRole}
            error={errors.role}
            onChange={(value) => setNewRole(value ?? 'user')}
          />
          <Select
            label={t('column.domain')}
            data={(domains.data ?? []).filter((item) => item.is_active).map((item) => item.name ?? '')}
            allowDeselect={false}
            value={domain || null}
            error={errors.domain_name}
            onChange={(value) => {
              setChosenDomain(value);
              setGroupIds([]); // groups belong to one domain
            }}
          />
          <MultiSelect
            label={t('column.projects')}
            description={t('create.projectsHint')}
            data={(groups.data ?? [])
              .filter((group) => group.is_active && group.domain_name === domain)
              .map((group) => ({ value: group.id ?? '', label: group.name ?? '' }))}
            value={groupIds}
            error={errors.group_ids}
            onChange={setGroupIds}
          />
          {mayLimit && (
            <>
              <NativeSelect
                label={t('create.userPolicy')}
                description={t('create.userPolicyHint')}
                data={[
                  { value: '', label: t('create.usualPolicy') },
                  ...(policies.data?.user ?? []).map((policy) => policy.name ?? ''),
                ]}
                value={userPolicy ?? ''}
                error={errors.resource_policy}
                onChange={(event) => setUserPolicy(event.currentTarget.value || null)}
              />
              <NativeSelect
                label={t('create.keypairPolicy')}
                description={t('create.keypairPolicyHint')}
                data={[
                  { value: '', label: t('create.usualPolicy') },
                  ...(policies.data?.keypair ?? []).map((policy) => policy.name ?? ''),
                ]}
                value={keypairPolicy ?? ''}
                onChange={(event) => setKeypairPolicy(event.currentTarget.value || null)}
              />
            </>
          )}
          {[domains, groups].map(
            (query, place) =>
              query.isError && (
                <ProblemAlert
                  key={place === 0 ? 'domains' : 'groups'}
                  error={query.error}
                  onRetry={() => void query.refetch()}
                />
              ),
          )}
          {problem !== null && !isPlaced && <ProblemAlert error={problem} />}
          <Group gap="xs">
            <Button type="submit" loading={create.isPending}>
              {t('create.submit')}
            </Button>
            <ButtonLink to="/people" variant="default">
              {common('cancel')}
            </ButtonLink>
          </Group>
        </Stack>
      </form>
    </Paper>
  );
}

/** Makes a user; what the manager does not take is told at its field. */
export function NewUserPage() {
  const { t } = useTranslation('people');
  return (
    <RoleGate roles={['admin', 'superadmin']}>
      <Page title={t('create.title')}>
        <NewUserForm />
      </Page>
    </RoleGate>
  );
}
export default NewUserPage;
