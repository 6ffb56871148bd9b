import { useTranslation } from 'react-i18next';
import { Notice } from '../../../components/Notice';
import { ProblemAlert } from '../../../components/ProblemAlert';
import { StatusBadge, type Tone } from '../../../components/StatusBadge';
import type { Answer } from './calls';

const tones: Record<Answer<unknown>['state'], Tone> = {
  waiting: 'wait',
  reading: 'busy',
  done: 'good',
  stopped: 'idle',
  cut: 'warn',
  broken: 'bad',
  failed: 'bad',
};

/** How far an answer is, in words that screen readers read; and why there is none. */
export function AnswerState({ answer, error }: { answer: Answer<unknown>; error?: string | null }) {
  const { t } = useTranslation('playground');
  const isRefused = error !== null && error !== undefined;
  return (
    <>
      <span role="status">
        <StatusBadge
          tone={isRefused ? 'bad' : tones[answer.state]}
          label={isRefused ? t('state.refused') : t(`state.${answer.state}`)}
        />
      </span>
      {answer.problem && <ProblemAlert error={answer.problem} />}
      {isRefused && (
        <Notice
          tone="bad"
          role="alert"
          title={answer.status === 200 ? t('refusedLater') : t('refused', { status: answer.status })}
        >
          {error}
        </Notice>
      )}
    </>
  );
}
