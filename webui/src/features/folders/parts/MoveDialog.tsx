import { TextInput } from '@mantine/core';
import { useState } from 'react';
import { useTranslation } from 'react-i18next';
import { FormDialog } from '../../../components/FormDialog';
import { useMoveFile } from '../queries';
import { joinPath, nameFault } from '../rules';

/** Asks for another path of a file or directory in its folder: another name, another place, or both. */
export function MoveDialog({ id, path, onClose }: { id: string; path: string; onClose: () => void }) {
  const { t } = useTranslation('folders');
  const move = useMoveFile();
  const [target, setTarget] = useState(path);
  const [isTouched, setTouched] = useState(false);
  const wanted = joinPath(target);
  const fault = nameFault(wanted.split('/').at(-1) ?? '');
  const submit = () => {
    setTouched(true);
    if (fault !== null) return;
    if (wanted === path) onClose();
    else move.mutate({ id, src: path, dst: wanted }, { onSuccess: onClose });
  };
  return (
    <FormDialog
      title={t('move.title', { name: path.split('/').at(-1) })}
      action={t('move.action')}
      isBusy={move.isPending}
      error={move.error}
      onSubmit={submit}
      onClose={onClose}
    >
      <TextInput
        label={t('move.path')}
        description={t('move.hint')}
        data-autofocus
        value={target}
        autoComplete="off"
        error={isTouched && fault !== null ? t(`fault.${fault}`) : null}
        onChange={(event) => {
          setTarget(event.currentTarget.value);
          move.reset();
        }}
      />
    </FormDialog>
  );
}
export default MoveDialog;
