/* routing_stubs.S - dlsym, dlvsym and the gates of symbols.def.
 *
 * They decide in C and then either answer or jump to the real function with every argument register and the stack
 * as they found them: it cannot tell that we were there. */

#if !defined(__x86_64__)
#error "routing_stubs.S is written for x86-64; another architecture needs its own"
#endif

    .text

/* Save and restore the six registers that carry arguments; 8 bytes more keep the stack on 16. */
    .macro save_arguments
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %r8
    pushq %r9
    subq $8, %rsp
    .cfi_adjust_cfa_offset 56
    .endm

    .macro restore_arguments
    addq $8, %rsp
    popq %r9
    popq %r8
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    .cfi_adjust_cfa_offset -56
    .endm

    .macro function name
    .globl \name
    .type \name, @function
    .p2align 4
\name:
    .cfi_startproc
    endbr64
    .endm

    .macro end name
    .cfi_endproc
    .size \name, . - \name
    .endm

/* void *dlsym(handle, name): the router gets the return address as its third argument. */
    function dlsym
    save_arguments
    movq 56(%rsp), %rdx
    call vgpu_route_dlsym
    testq %rdx, %rdx
    jnz 1f
    call vgpu_loader_dlsym
    movq %rax, %r11
    restore_arguments
    testq %r11, %r11
    jz 2f
    jmp *%r11
2:  xorl %eax, %eax
    ret
1:  .cfi_adjust_cfa_offset 56
    restore_arguments
    ret
    end dlsym

/* void *dlvsym(handle, name, version) */
    function dlvsym
    save_arguments
    movq 56(%rsp), %rcx
    call vgpu_route_dlvsym
    testq %rdx, %rdx
    jnz 1f
    call vgpu_loader_dlvsym
    movq %rax, %r11
    restore_arguments
    testq %r11, %r11
    jz 2f
    jmp *%r11
2:  xorl %eax, %eax
    ret
1:  .cfi_adjust_cfa_offset 56
    restore_arguments
    ret
    end dlvsym

/* One gate for each VGPU_GATE row: refused calls return CUDA_ERROR_NOT_SUPPORTED (801). */
    .set gate_index, 0
    .macro gate name
    function \name
    save_arguments
    movl $gate_index, %edi
    call vgpu_route_gate
    movq %rax, %r11
    restore_arguments
    testq %r11, %r11
    jz 1f
    jmp *%r11
1:  movl $801, %eax
    ret
    end \name
    .set gate_index, gate_index + 1
    .endm

#define VGPU_GATE(class, library, symbol, base, since, per_thread) gate symbol
#include "symbols.def"

    .section .note.GNU-stack, "", @progbits
