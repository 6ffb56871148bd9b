import { Button, PasswordInput, Stack, TextInput } from '@mantine/core';
import { type FormEvent, lazy, Suspense, useEffect, useRef, useState } from 'react';
import { useTranslation } from 'react-i18next';
import { changeExpiredPassword, type Login, signIn } from '../../api/login';
import { asProblem, type Problem } from '../../api/problems';
import { Notice } from '../../components/Notice';
import { ProblemAlert } from '../../components/ProblemAlert';
import { loadMessages } from '../../i18n';
import { refusalOf } from './rules';

const RegistrationStep = lazy(async () => {
  const [module] = await Promise.all([import('./registration/RegistrationStep'), loadMessages('registration')]);
  return { default: module.RegistrationStep };
});

/** Counts down from the seconds that a refusal names. */
function useWait(problem: Problem | null): number {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    let rest = problem?.status === 429 ? (problem.retryAfter ?? 0) : 0;
    setSeconds(rest);
    if (rest === 0) return;
    const timer = setInterval(() => {
      rest -= 1;
      setSeconds(rest);
      if (rest <= 0) clearInterval(timer);
    }, 1000);
    return () => clearInterval(timer);
  }, [problem]);
  return seconds;
}

/** Asks for name and password, and for a one-time or a new password when the manager wants one. */
export function LoginForm({ onLogin, username: known }: { onLogin: (login: Login) => void; username?: string }) {
  const { t } = useTranslation('login');
  const [username, setUsername] = useState(known ?? '');
  const [password, setPassword] = useState('');
  const [otp, setOtp] = useState('');
  const [newPassword, setNewPassword] = useState('');
  const [asksOtp, setAsksOtp] = useState(false);
  const [asksNew, setAsksNew] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [isChanged, setChanged] = useState(false);
  const [registration, setRegistration] = useState('');
  const [isBusy, setBusy] = useState(false);
  const otpField = useRef<HTMLInputElement>(null);
  const wait = useWait(problem);
  useEffect(() => {
    if (asksOtp) otpField.current?.focus();
  }, [asksOtp]);

  const submit = async (event: FormEvent) => {
    event.preventDefault();
    setBusy(true);
    setProblem(null);
    try {
      if (asksNew) {
        await changeExpiredPassword(username, password, newPassword, asksOtp ? otp : undefined);
        // From here on the new password is the right one, and the one-time password has been spent.
        setPassword(newPassword);
        setAsksNew(false);
        setOtp('');
        setChanged(true);
        if (asksOtp) return;
      }
      onLogin(
        await signIn({ username, password: asksNew ? newPassword : password, ...(asksOtp && otp ? { otp } : {}) }),
      );
    } catch (error) {
      const refused = asProblem(error);
      const refusal = refusalOf(refused);
      if (refusal === 'expired-password') setAsksNew(true);
      if (refusal === 'register') return setRegistration(String(refused.fields.registration_token ?? ''));
      if (refusal === 'otp' && !asksOtp) setAsksOtp(true);
      else setProblem(refused);
    } finally {
      setBusy(false);
    }
  };
  const refusal = problem === null ? null : refusalOf(problem);
  const isAboutNew =
    asksNew && problem !== null && problem.status !== 401 && /password/.test(Object.keys(problem.fields).join());
  const fieldError = isAboutNew ? problem.detail || problem.title : undefined;
  if (registration !== '') {
    const signInAgain = () => {
      setRegistration('');
      setAsksOtp(true);
    };
    return (
      <Suspense>
        <RegistrationStep token={registration} onDone={signInAgain} onCancel={() => setRegistration('')} />
      </Suspense>
    );
  }
  return (
    <form onSubmit={(event) => void submit(event)}>
      <Stack>
        <TextInput
          label={t('username')}
          name="username"
          autoComplete="username"
          required
          withAsterisk={false}
          autoFocus={known === undefined}
          value={username}
          onChange={(event) => setUsername(event.currentTarget.value)}
        />
        <PasswordInput
          label={t('password')}
          name="password"
          autoComplete="current-password"
          required
          withAsterisk={false}
          visibilityToggleButtonProps={{ 'aria-label': t('showPassword'), tabIndex: 0 }}
          value={password}
          onChange={(event) => setPassword(event.currentTarget.value)}
        />
        {asksOtp && (
          <TextInput
            ref={otpField}
            label={t('otp')}
            description={t('otpHint')}
            name="otp"
            autoComplete="one-time-code"
            inputMode="numeric"
            required
            withAsterisk={false}
            value={otp}
            onChange={(event) => setOtp(event.currentTarget.value)}
          />
        )}
        {isChanged && asksOtp && <Notice tone="good" role="status" title={t('changed')} />}
        {asksNew && (
          <PasswordInput
            label={t('newPassword')}
            description={t('newPasswordHint')}
            name="new-password"
            autoComplete="new-password"
            required
            withAsterisk={false}
            value={newPassword}
            error={fieldError}
            onChange={(event) => setNewPassword(event.currentTarget.value)}
          />
        )}
        {(refusal === 'wrong' || refusal === 'otp' || refusal === 'blocked' || refusal === 'expired-password') && (
          <Notice tone="bad" role="alert" title={t(`refused.${refusal}`)}>
            {refusal === 'blocked' && wait > 0 ? t('wait', { count: wait }) : null}
            {refusal === 'wrong' ? t('refused.wrongHint') : null}
          </Notice>
        )}
        {refusal === 'other' && !isAboutNew && <ProblemAlert error={problem} />}
        <Button type="submit" loading={isBusy} disabled={wait > 0}>
          {t('submit')}
        </Button>
      </Stack>
    </form>
  );
}
