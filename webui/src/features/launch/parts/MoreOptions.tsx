import { Checkbox, SimpleGrid, Textarea, TextInput } from '@mantine/core';
import { lazy, Suspense, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { withLine } from '../../../api/forms/lines';
import { useRole } from '../../../api/me';
import { Disclosed } from '../../../components/Disclosed';
import { rareCount, rareFields } from '../rules';
import { type FormProps, useTextFields } from './fields';

// Only some people state what devices or plugins must be.
const OfferedLines = lazy(() => import('./OfferedLines'));

/** The rarer options of a session, hidden until they are asked for; one that is refused shows them. */
export function MoreOptions(props: FormProps) {
  const { draft, change, refusals } = props;
  const { t } = useTranslation('launch');
  const role = useRole();
  const used = rareCount(draft);
  const [isChosen, setChosen] = useState(used > 0);
  const field = useTextFields(props);
  const isOpen = isChosen || rareFields.some((name) => refusals[name] !== undefined || field(name).error !== null);
  const isBatch = draft.type === 'batch';
  const isAdministrator = role === 'admin' || role === 'superadmin' || draft.owner !== '' || draft.agents !== '';
  return (
    <Disclosed
      title={used > 0 ? t('more.used', { used }) : t('more.title')}
      isOpen={isOpen}
      onToggle={() => setChosen(!isOpen)}
    >
      <Textarea
        {...field('variants')}
        label={t('more.variants')}
        description={t('more.variantsHint')}
        autosize
        minRows={1}
      />
      <Suspense>
        <OfferedLines
          kind="variants"
          group={draft.group}
          onAdd={(line) => change({ variants: withLine(draft.variants, line) })}
        />
      </Suspense>
      <Textarea
        {...field('plugins')}
        label={t('more.plugins')}
        description={t('more.pluginsHint')}
        placeholder="fpga.image=fft.bit"
        autosize
        minRows={1}
        maxRows={8}
      />
      <Suspense>
        <OfferedLines kind="plugins" group="" onAdd={(line) => change({ plugins: withLine(draft.plugins, line) })} />
      </Suspense>
      <SimpleGrid cols={{ base: 1, sm: 2 }} spacing="sm">
        <TextInput {...field('claim')} label={t('more.claim')} description={t('more.claimHint')} />
        <TextInput {...field('shmem')} label={t('more.shmem')} description={t('more.shmemHint')} />
        <TextInput {...field('tag')} label={t('more.tag')} description={t('more.tagHint')} maxLength={64} />
        {isBatch && <TextInput {...field('timeout')} label={t('more.timeout')} description={t('more.timeoutHint')} />}
        <TextInput {...field('starts')} label={t('more.starts')} description={t('more.startsHint')} />
        <TextInput {...field('depends')} label={t('more.depends')} description={t('more.dependsHint')} />
        <TextInput
          {...field('priority')}
          label={t('more.priority')}
          description={t('more.priorityHint')}
          inputMode="numeric"
        />
        <TextInput {...field('preopen')} label={t('more.preopen')} description={t('more.preopenHint')} />
        <TextInput {...field('architecture')} label={t('more.architecture')} description={t('more.architectureHint')} />
        <TextInput {...field('runtime')} label={t('more.runtime')} description={t('more.runtimeHint')} />
        {isAdministrator && <TextInput {...field('owner')} label={t('more.owner')} description={t('more.ownerHint')} />}
        {isAdministrator && (
          <TextInput {...field('agents')} label={t('more.agents')} description={t('more.agentsHint')} />
        )}
        {(isAdministrator || draft.domain !== '') && (
          <TextInput {...field('domain')} label={t('more.domain')} description={t('more.domainHint')} />
        )}
      </SimpleGrid>
      <Textarea
        {...field('bootstrap')}
        label={t('more.bootstrap')}
        description={t('more.bootstrapHint')}
        autosize
        minRows={2}
        maxRows={12}
      />
      <Checkbox
        label={t('more.keep')}
        checked={draft.keep}
        onChange={(event) => change({ keep: event.currentTarget.checked })}
      />
      {isBatch && (
        <Checkbox
          label={t('more.restartable')}
          checked={draft.restartable}
          onChange={(event) => change({ restartable: event.currentTarget.checked })}
        />
      )}
    </Disclosed>
  );
}
