import { Checkbox, Group, NumberInput, SegmentedControl, SimpleGrid, Textarea, TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { useRole } from '../../../api/me';
import { Disclosed } from '../../../components/Disclosed';
import type { ServiceDraft } from '../draft';
import { policyChangeOf, policyDraftFrom, policyDraftOf, policyOf } from '../rollout';
import { type FieldName, faultsOf, mostKernels, type RareField, rareCount, rareFields } from '../rules';
import { PolicyFields } from './PolicyFields';

/** The rarer options of a service, hidden until they are asked for; one that is refused shows them. */
export function MoreOptions({
  draft,
  change,
  errorOf,
}: {
  draft: ServiceDraft;
  change: (changes: Partial<ServiceDraft>) => void;
  errorOf: (field: FieldName) => string | undefined;
}) {
  const { t } = useTranslation('services');
  const role = useRole();
  const used = rareCount(draft);
  const [isChosen, setChosen] = useState(used > 0);
  const faults = faultsOf(draft);
  const wrongOf = (name: FieldName) => (faults.some((fault) => fault === name) ? t('change.malformed') : errorOf(name));
  const isOpen = isChosen || [...rareFields, 'size' as const, 'mode' as const].some((name) => wrongOf(name));
  const field = (name: RareField) => ({
    value: draft[name],
    autoComplete: 'off',
    spellCheck: false,
    error: wrongOf(name),
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
  const policy = policyDraftFrom(draft.policy);
  const isAdministrator = role === 'admin' || role === 'superadmin' || draft.owner !== '';
  return (
    <Disclosed
      title={used > 0 ? t('more.used', { used }) : t('more.title')}
      isOpen={isOpen}
      onToggle={() => setChosen(!isOpen)}
    >
      <Textarea
        {...field('env')}
        label={t('change.environ')}
        description={t('more.envHint')}
        autosize
        minRows={1}
        maxRows={10}
      />
      <Textarea
        {...field('devices')}
        label={t('more.devices')}
        description={t('more.devicesHint')}
        autosize
        minRows={1}
        maxRows={8}
      />
      <Textarea
        {...field('variants')}
        label={t('more.variants')}
        description={t('more.variantsHint')}
        autosize
        minRows={1}
      />
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
        <TextInput {...field('claim')} label={t('more.claim')} description={t('more.claimHint')} maxLength={64} />
        <TextInput
          {...field('port')}
          label={t('change.port')}
          description={t('more.portHint')}
          inputMode="numeric"
          maxLength={5}
        />
        <TextInput {...field('modelName')} label={t('change.modelName')} description={t('change.modelNameHint')} />
        <TextInput {...field('version')} label={t('change.version')} description={t('more.versionHint')} />
        <TextInput
          {...field('mount')}
          label={t('fact.mount')}
          description={t('more.mountHint')}
          placeholder="/models"
        />
        <TextInput {...field('architecture')} label={t('more.architecture')} description={t('more.architectureHint')} />
        <TextInput {...field('tag')} label={t('change.tag')} description={t('more.tagHint')} maxLength={64} />
        {isAdministrator && <TextInput {...field('owner')} label={t('more.owner')} description={t('more.ownerHint')} />}
      </SimpleGrid>
      <Group align="flex-end">
        <NumberInput
          label={t('more.size')}
          min={1}
          max={mostKernels}
          allowDecimal={false}
          w={160}
          value={draft.size}
          error={errorOf('size')}
          onChange={(size) => change({ size: Number(size) || 1 })}
        />
        <SegmentedControl
          aria-label={t('more.mode')}
          value={draft.mode}
          onChange={(mode) => change({ mode: mode as ServiceDraft['mode'] })}
          data={[
            { value: 'single-node', label: t('more.single') },
            { value: 'multi-node', label: t('more.multi') },
          ]}
        />
      </Group>
      <Checkbox
        label={t('more.policy')}
        description={t('more.policyHint')}
        error={errorOf('policy')}
        checked={policy !== null}
        onChange={(event) =>
          change({ policy: event.currentTarget.checked ? JSON.stringify(policyDraftOf(policyOf({}))) : '' })
        }
      />
      {policy !== null && (
        <PolicyFields
          draft={policy}
          wrong={policyChangeOf(policy).wrong}
          change={(part) => change({ policy: JSON.stringify({ ...policy, ...part }) })}
        />
      )}
    </Disclosed>
  );
}
