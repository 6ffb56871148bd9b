import { Button, PasswordInput, Stack, Text, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { type FormEvent, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { boot } from '../../../api/boot';
import { signUp } from '../../../api/login';
import { asProblem } from '../../../api/problems';
import { AnchorLink } from '../../../components/AnchorLink';
import { EmptyState } from '../../../components/EmptyState';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { Frame } from './Frame';

/** Asks for an account, where the site lets people. The reply is the same for an address that has one. */
export function SignUpPage() {
  const { t } = useTranslation('signUp');
  const [email, setEmail] = useState('');
  const [name, setName] = useState('');
  const [password, setPassword] = useState('');
  const act = useMutation({ mutationFn: signUp, gcTime: 0 });
  if (!boot.features.signup) {
    return (
      <Frame title={t('title')}>
        <EmptyState title={t('closed')}>{t('closedHint')}</EmptyState>
      </Frame>
    );
  }
  if (act.isSuccess) {
    return (
      <Frame title={t('title')}>
        <Notice tone="good" role="status" title={t('sent')}>
          {t('sentHint', { email: act.variables.email })}
        </Notice>
        <AnchorLink to="/verify-email">{t('verify')}</AnchorLink>
      </Frame>
    );
  }
  const submit = (event: FormEvent) => {
    event.preventDefault();
    act.mutate({ email: email.trim(), password, full_name: name.trim() });
  };
  const problem = act.isError ? asProblem(act.error) : null;
  const errorOf = (field: string) =>
    problem !== null && field in problem.fields ? problem.detail || problem.title : null;
  const isPlaced = ['email', 'password', 'full_name'].some((field) => errorOf(field) !== null);
  return (
    <Frame title={t('title')}>
      <form onSubmit={submit}>
        <Stack>
          <TextInput
            label={t('email')}
            type="email"
            autoComplete="username"
            required
            withAsterisk={false}
            autoFocus
            value={email}
            error={errorOf('email')}
            onChange={(event) => setEmail(event.currentTarget.value)}
          />
          <TextInput
            label={t('name')}
            autoComplete="name"
            value={name}
            error={errorOf('full_name')}
            onChange={(event) => setName(event.currentTarget.value)}
          />
          <PasswordInput
            label={t('password')}
            autoComplete="new-password"
            required
            withAsterisk={false}
            visibilityToggleButtonProps={{ 'aria-label': t('showPassword'), tabIndex: 0 }}
            value={password}
            error={errorOf('password')}
            onChange={(event) => setPassword(event.currentTarget.value)}
          />
          {problem !== null && !isPlaced && <ProblemAlert error={problem} />}
          <Button type="submit" loading={act.isPending}>
            {t('submit')}
          </Button>
          <Text size="sm">
            <AnchorLink to="/verify-email">{t('verify')}</AnchorLink>
          </Text>
        </Stack>
      </form>
    </Frame>
  );
}
export default SignUpPage;
