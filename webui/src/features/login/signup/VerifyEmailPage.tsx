import { Button, PasswordInput, Stack, Text, Textarea } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { type FormEvent, useEffect, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { verifyEmail } from '../../../api/login';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { tokenOf } from '../rules';
import { Frame } from './Frame';

/** Proves the address of a new account by the token that was sent there, and the password that was chosen. */
export function VerifyEmailPage() {
  const { t } = useTranslation('signUp');
  const [token, setToken] = useState(() => tokenOf(window.location.search, window.location.hash));
  const [password, setPassword] = useState('');
  const act = useMutation({ mutationFn: () => verifyEmail(token.trim(), password), gcTime: 0 });
  useEffect(() => {
    // The token stays neither in the address nor in the history.
    window.history.replaceState(window.history.state, '', window.location.pathname);
  }, []);
  if (act.isSuccess) {
    return (
      <Frame title={t('verifyTitle')}>
        <Notice tone="good" role="status" title={t('active')}>
          {t('activeHint')}
        </Notice>
      </Frame>
    );
  }
  const submit = (event: FormEvent) => {
    event.preventDefault();
    act.mutate();
  };
  return (
    <Frame title={t('verifyTitle')}>
      <form onSubmit={submit}>
        <Stack>
          <Text>{t('verifyMeans')}</Text>
          <Textarea
            label={t('token')}
            required
            withAsterisk={false}
            spellCheck={false}
            autoComplete="off"
            rows={3}
            value={token}
            onChange={(event) => setToken(event.currentTarget.value)}
          />
          <PasswordInput
            label={t('chosenPassword')}
            autoComplete="current-password"
            required
            withAsterisk={false}
            visibilityToggleButtonProps={{ 'aria-label': t('showPassword'), tabIndex: 0 }}
            value={password}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
          {act.isError && <ProblemAlert error={act.error} />}
          <Button type="submit" loading={act.isPending}>
            {t('verifySubmit')}
          </Button>
        </Stack>
      </form>
    </Frame>
  );
}
export default VerifyEmailPage;
