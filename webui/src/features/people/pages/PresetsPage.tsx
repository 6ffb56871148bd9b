import { Code } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { slotsOf } from '../../../api/filters';
import { useRole } from '../../../api/me';
import { AnchorLink } from '../../../components/AnchorLink';
import { gated } from '../../../components/gated';
import { Page } from '../../../components/Page';
import { Query } from '../../../components/Query';
import { Slots } from '../../../components/Slots';
import { formatBytes } from '../../../i18n/format';
import { EditableTable } from '../editing/EditableTable';
import { PresetForm } from '../editing/forms';
import { usePresets } from '../queries';

/** Amounts of resources that people choose by name when they launch. */
export function PresetsPage() {
  const { t, i18n } = useTranslation('people');
  const query = usePresets();
  const mayChange = useRole() === 'superadmin';
  const nameOf = (preset: { name?: string | null }) => preset.name ?? '';
  return (
    <Page title={t('preset.title')} actions={<AnchorLink to="/policies">{t('policies')}</AnchorLink>}>
      <Query query={query}>
        {(presets) => (
          <EditableTable
            kind="preset"
            form={PresetForm}
            label={t('preset.title')}
            rows={presets}
            idOf={nameOf}
            nameOf={nameOf}
            mayChange={mayChange}
            columns={[
              { label: t('column.name'), cell: nameOf },
              { label: t('preset.slots'), cell: (preset) => <Slots amounts={slotsOf(preset.resource_slots)} /> },
              {
                label: t('preset.sharedMemory'),
                cell: (preset) => (preset.shared_memory ? formatBytes(preset.shared_memory, i18n.language) : '–'),
              },
              {
                label: t('preset.devices'),
                cell: (preset) => (preset.device_requests ?? []).map((request) => <Code key={request}>{request}</Code>),
              },
            ]}
          />
        )}
      </Query>
    </Page>
  );
}
export default gated(['admin', 'superadmin', 'monitor'], PresetsPage);
