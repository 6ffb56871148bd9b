import { Anchor, Button, Group, Stack, Text } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { Card } from '../../../components/Card';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Query } from '../../../components/Query';
import { RelativeTime } from '../../../components/RelativeTime';
import { Secret } from '../../../components/Secret';
import { useBeginTotp, useConfirmTotp, useNewRecoveryCodes, useRemoveTotp, useTotp } from '../queries';
import { grouped } from '../rules';
import { OtpForm } from './OtpForm';

function Enrolment({ onCodes, onClose }: { onCodes: (codes: string[]) => void; onClose: () => void }) {
  const { t } = useTranslation('account');
  const begin = useBeginTotp();
  const confirm = useConfirmTotp();
  const device = begin.data;
  if (device === undefined) {
    return (
      <Stack gap="sm">
        <Text>{t('totp.means')}</Text>
        {begin.isError && <ProblemAlert error={begin.error} />}
        <Group>
          <Button variant="default" loading={begin.isPending} onClick={() => begin.mutate()}>
            {t('totp.begin')}
          </Button>
        </Group>
      </Stack>
    );
  }
  return (
    <Stack gap="sm">
      <Text>{t('totp.enter')}</Text>
      <Secret label={t('totp.key')} value={grouped(device.totp_key)} />
      <Secret label={t('totp.uri')} value={device.totp_uri} />
      <Anchor href={device.totp_uri} size="sm">
        {t('totp.open')}
      </Anchor>
      <OtpForm
        hint={t('totp.confirmHint')}
        action={t('totp.confirm')}
        isBusy={confirm.isPending}
        error={confirm.error}
        onSubmit={(otp) =>
          confirm.mutate(otp, {
            onSuccess: ({ recovery_codes: codes }) => {
              begin.reset();
              onCodes(codes);
            },
          })
        }
        onCancel={() => {
          begin.reset();
          onClose();
        }}
      />
    </Stack>
  );
}

function Codes({ codes, onDone }: { codes: readonly string[]; onDone: () => void }) {
  const { t } = useTranslation('account');
  return (
    <Notice tone="wait" role="status" title={t('totp.codesOnce')}>
      <Stack gap="sm">
        <Text size="sm">{t('totp.codesMean')}</Text>
        <Secret label={t('totp.codes')} value={codes.join('\n')} />
        <Group>
          <Button size="xs" onClick={onDone}>
            {t('totp.kept')}
          </Button>
        </Group>
      </Stack>
    </Notice>
  );
}

/** What may be done with one-time passwords that are on: both acts take one of them. */
function Active({ left, onCodes }: { left: number; onCodes: (codes: string[]) => void }) {
  const { t } = useTranslation('account');
  const [act, setAct] = useState<'codes' | 'remove' | null>(null);
  const renew = useNewRecoveryCodes();
  const remove = useRemoveTotp();
  const choose = (next: typeof act) => {
    renew.reset();
    remove.reset();
    setAct(next);
  };
  return (
    <>
      <Text>{t('totp.left', { count: left })}</Text>
      {act === null && (
        <Group gap="xs">
          <Button variant="default" onClick={() => choose('codes')}>
            {t('totp.newCodes')}
          </Button>
          <Button variant="default" onClick={() => choose('remove')}>
            {t('totp.remove')}
          </Button>
        </Group>
      )}
      {act === 'codes' && (
        <OtpForm
          hint={t('totp.newCodesHint')}
          action={t('totp.newCodes')}
          isBusy={renew.isPending}
          error={renew.error}
          onSubmit={(otp) =>
            renew.mutate(otp, {
              onSuccess: ({ recovery_codes: codes }) => {
                choose(null);
                onCodes(codes);
              },
            })
          }
          onCancel={() => choose(null)}
        />
      )}
      {act === 'remove' && (
        <OtpForm
          hint={t('totp.removeHint')}
          action={t('totp.remove')}
          isDangerous
          isBusy={remove.isPending}
          error={remove.error}
          onSubmit={(otp) => remove.mutate(otp, { onSuccess: () => choose(null) })}
          onCancel={() => choose(null)}
        />
      )}
    </>
  );
}

/** One-time passwords of the person: enrolment, recovery codes, removal. */
export function TotpCard() {
  const { t } = useTranslation('account');
  const query = useTotp();
  const [codes, setCodes] = useState<readonly string[]>([]);
  return (
    <Card title={t('totp.title')}>
      <Query query={query}>
        {({ totp_activated: isActive, created_at: since, recovery_codes_left: left }) => (
          <Stack gap="sm">
            {codes.length > 0 && <Codes codes={codes} onDone={() => setCodes([])} />}
            {isActive ? (
              <>
                <Text>
                  {t('totp.on')} <RelativeTime at={since} />
                </Text>
                <Active left={left} onCodes={setCodes} />
              </>
            ) : (
              codes.length === 0 && <Enrolment onCodes={setCodes} onClose={() => undefined} />
            )}
          </Stack>
        )}
      </Query>
    </Card>
  );
}
