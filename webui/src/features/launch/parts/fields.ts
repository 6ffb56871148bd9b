import { useTranslation } from 'react-i18next';
import type { Draft, TextField } from '../draft';
import { faultsOf, type refusalsOf } from '../rules';

export interface FormProps {
  draft: Draft;
  change: (changes: Partial<Draft>) => void;
  /** What the manager says is wrong, by field. */
  refusals: ReturnType<typeof refusalsOf>;
}

/** Returns the properties of a field of text; what the form itself cannot read comes before what the manager says. */
export function useTextFields({ draft, change, refusals }: FormProps) {
  const { t } = useTranslation('launch');
  const faults = faultsOf(draft);
  return (name: TextField) => ({
    value: draft[name],
    autoComplete: 'off',
    spellCheck: false,
    error: faults.includes(name) ? t(`fault.${name as 'env'}`) : (refusals[name] ?? null),
    onChange: (event: { currentTarget: { value: string } }) => change({ [name]: event.currentTarget.value }),
  });
}
