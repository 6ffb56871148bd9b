import { Button, Group, Stack, TextInput } from '@mantine/core';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { asProblem } from '../../../api/problems';
import { ProblemAlert } from '../../../components/ProblemAlert';

/** Asks for a one-time password; a wrong one is told at its field. */
export function OtpForm({
  hint,
  action,
  isBusy,
  isDangerous = false,
  error,
  onSubmit,
  onCancel,
}: {
  hint: string;
  action: string;
  isBusy: boolean;
  isDangerous?: boolean;
  error: unknown;
  onSubmit: (otp: string) => void;
  onCancel: () => void;
}) {
  const { t } = useTranslation('account');
  const { t: common } = useTranslation('components');
  const [otp, setOtp] = useState('');
  const problem = error === null ? null : asProblem(error);
  const isWrong = problem !== null && 'otp' in problem.fields;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    onSubmit(otp.trim());
  };
  return (
    <form onSubmit={submit}>
      <Stack gap="sm">
        <TextInput
          label={t('totp.code')}
          description={hint}
          autoComplete="one-time-code"
          maxLength={64}
          required
          withAsterisk={false}
          data-autofocus
          value={otp}
          error={isWrong ? t('totp.wrong') : undefined}
          onChange={(event) => setOtp(event.currentTarget.value)}
        />
        {problem !== null && !isWrong && <ProblemAlert error={problem} />}
        <Group gap="xs">
          <Button type="submit" loading={isBusy} {...(isDangerous ? { color: 'red.9' } : {})}>
            {action}
          </Button>
          <Button variant="default" onClick={onCancel}>
            {common('cancel')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
