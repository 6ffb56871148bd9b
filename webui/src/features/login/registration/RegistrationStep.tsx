import { Anchor, Button, Group, Stack, Text, TextInput } from '@mantine/core';
import { type FormEvent, useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { beginRegistration, confirmRegistration } from '../../../api/login';
import { asProblem, type Problem } from '../../../api/problems';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Secret } from '../../../components/Secret';

interface Device {
  key: string;
  uri: string;
}

/** Registers one-time passwords in the middle of a sign-in that demands them. */
export function RegistrationStep({
  token,
  onDone,
  onCancel,
}: {
  token: string;
  onDone: () => void;
  onCancel: () => void;
}) {
  const { t } = useTranslation('registration');
  const [device, setDevice] = useState<Device | null>(null);
  const [codes, setCodes] = useState<readonly string[]>([]);
  const [otp, setOtp] = useState('');
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isBusy, setBusy] = useState(false);
  useEffect(() => {
    beginRegistration(token).then(setDevice, (error: unknown) => setProblem(asProblem(error)));
  }, [token]);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      setCodes(await confirmRegistration(token, otp.trim()));
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  if (codes.length > 0) {
    return (
      <Notice tone="wait" role="status" title={t('codesOnce')}>
        <Stack gap="sm">
          <Text size="sm">{t('codesMean')}</Text>
          <Secret label={t('codes')} value={codes.join('\n')} />
          <Button onClick={onDone}>{t('kept')}</Button>
        </Stack>
      </Notice>
    );
  }
  const isWrong = problem !== null && 'otp' in problem.fields;
  return (
    <form onSubmit={(event) => void submit(event)}>
      <Stack>
        <Notice tone="wait" role="status" title={t('title')}>
          {t('means')}
        </Notice>
        {device !== null && (
          <>
            <Secret label={t('key')} value={device.key.replace(/(.{4})(?=.)/g, '$1 ')} />
            <Anchor href={device.uri} size="sm">
              {t('open')}
            </Anchor>
            <TextInput
              label={t('code')}
              description={t('codeHint')}
              name="otp"
              autoComplete="one-time-code"
              inputMode="numeric"
              maxLength={64}
              required
              withAsterisk={false}
              value={otp}
              error={isWrong ? t('wrong') : undefined}
              onChange={(event) => setOtp(event.currentTarget.value)}
            />
          </>
        )}
        {problem !== null && !isWrong && <ProblemAlert error={problem} />}
        <Group gap="xs">
          <Button type="submit" loading={isBusy} disabled={device === null}>
            {t('confirm')}
          </Button>
          <Button variant="default" onClick={onCancel}>
            {t('back')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
