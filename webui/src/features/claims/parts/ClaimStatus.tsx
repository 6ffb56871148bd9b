import { Stack, Text } from '@mantine/core';
import { useTranslation } from 'react-i18next';
import { StatusBadge } from '../../../components/StatusBadge';
import { type Claim, toneOf } from '../rules';

/** The status of a claim, whether it is to be deleted, and what is wrong with its devices. */
export function ClaimStatus({ claim }: { claim: Claim }) {
  const { t } = useTranslation('claims');
  return (
    <Stack gap={2}>
      <StatusBadge tone={toneOf(claim)} label={t(`status.${claim.status}` as 'status.IDLE', claim.status)} />
      {claim.is_deleting && <Text size="xs">{t('deleting')}</Text>}
      {claim.problem !== '' && <Text size="xs">{claim.problem}</Text>}
    </Stack>
  );
}
