import { useTranslation } from 'react-i18next';
import type { components } from '../api/generated/rest';
import { formatDuration, formatNumber } from '../i18n/format';
import { SimpleTable } from './SimpleTable';

export type TokenUse = components['schemas']['UsageReply'];
type Group = TokenUse['groups'][number];

/** What tokens used at model services, a row for each group, and one for all of them. */
export function TokenUseTable({
  use,
  label,
  nameOf,
}: {
  use: TokenUse;
  label: string;
  nameOf: (group: Group) => string;
}) {
  const { t, i18n } = useTranslation('components');
  const number = (value: number) => formatNumber(value, i18n.language);
  const rows = use.groups.map((group, index) => ({ ...group, id: String(index), title: nameOf(group) }));
  if (rows.length > 1) rows.push({ ...use.total, key: null, name: null, id: 'total', title: t('use.total') });
  return (
    <SimpleTable
      label={label}
      rows={rows}
      idOf={(row) => row.id}
      minWidth={680}
      columns={[
        { label: t('use.of'), cell: (row) => row.title },
        { label: t('use.requests'), cell: (row) => number(row.requests) },
        { label: t('use.errors'), cell: (row) => number(row.errors) },
        { label: t('use.prompt'), cell: (row) => number(row.prompt_tokens) },
        { label: t('use.cached'), cell: (row) => number(row.cached_tokens) },
        { label: t('use.output'), cell: (row) => number(row.output_tokens) },
        { label: t('use.busy'), cell: (row) => formatDuration(row.busy_s, i18n.language) },
      ]}
    />
  );
}
