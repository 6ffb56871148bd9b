import { Button, Group, PasswordInput, SegmentedControl, Stack, Text, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { proofs } from '../../api/proof';
import { ProblemAlert } from '../../components/ProblemAlert';

type Kind = 'password' | 'otp';

/** Takes the password or a one-time password again. */
export function ProofForm() {
  const { t } = useTranslation('proof');
  const [kind, setKind] = useState<Kind>('password');
  const [text, setText] = useState('');
  const give = useMutation({
    mutationFn: (value: string) => proofs.give(kind === 'password' ? { password: value } : { otp: value.trim() }),
    gcTime: 0,
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (text !== '') give.mutate(text);
  };
  const choose = (next: string) => {
    setKind(next === 'otp' ? 'otp' : 'password');
    setText('');
    give.reset();
  };
  return (
    <form onSubmit={submit}>
      <Stack>
        <Text>{t('detail')}</Text>
        <SegmentedControl
          aria-label={t('kind')}
          value={kind}
          onChange={choose}
          data={[
            { value: 'password', label: t('password') },
            { value: 'otp', label: t('otp') },
          ]}
        />
        {kind === 'password' ? (
          <PasswordInput
            key="password"
            label={t('password')}
            value={text}
            autoComplete="current-password"
            data-autofocus
            visibilityToggleButtonProps={{ 'aria-label': t('show') }}
            onChange={(event) => setText(event.currentTarget.value)}
          />
        ) : (
          <TextInput
            key="otp"
            label={t('otp')}
            description={t('otpHint')}
            value={text}
            autoComplete="one-time-code"
            data-autofocus
            onChange={(event) => setText(event.currentTarget.value)}
          />
        )}
        {give.isError && <ProblemAlert error={give.error} />}
        <Group justify="flex-end">
          <Button variant="default" onClick={() => proofs.refuse()}>
            {t('cancel')}
          </Button>
          <Button type="submit" loading={give.isPending} disabled={text === ''}>
            {t('submit')}
          </Button>
        </Group>
      </Stack>
    </form>
  );
}
export default ProofForm;
